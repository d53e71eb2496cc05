"""The command `purestep doctor`: what this machine has, to read and to paste into a report of a defect."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from .. import __version__
from . import documents

PACKAGES = ("torch", "numpy", "optree", "safetensors", "pydantic", "zarr", "click", "rich", "matplotlib")
EXTRAS = ("ase", "h5py", "tensorboard", "wandb", "mlflow-skinny", "trackio", "triton")
COMPILERS = ("g++", "clang++", "c++", "nvcc")
SETTINGS = ("OMP_", "MKL_", "CUDA_", "CUBLAS_", "NCCL_", "TORCH", "PYTORCH_", "PURESTEP_", "NO_COLOR", "TERM")
PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_")
"""From which a process learns its place among others."""
PRIVATE = ("WANDB_", "MLFLOW_", "TRACKIO_", "HF_")
"""Some of these are keys, so their values are not shown."""
_DRIVER = "/proc/driver/nvidia/version"


@click.command(
    "doctor",
    short_help="Say what this machine has.",
    help="""Say what this machine has: Python, torch, devices, compiler, packages, disk.

    \b
      purestep doctor           to read
      purestep doctor --json    to process""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Look around and print."""
    document = {"schema": "purestep.doctor/1", **examine()}
    if as_json:
        documents.emit(document)
        return
    for name, value in document.items():
        click.echo(f"{name:<12}{_text(value)}")


def examine() -> dict[str, Any]:
    """What is there; nothing is changed and nothing is sent anywhere."""
    return {
        "purestep": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: version_of(name) for name in (*PACKAGES, *EXTRAS)},
        "devices": _devices(),
        "driver": driver(),
        "compilers": {name: shutil.which(name) for name in COMPILERS},
        "disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free in {os.getcwd()}",
        "environment": settings_in(os.environ),
    }


def settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what a run does, here or in a library that it calls."""
    shown = {name: value for name, value in environment.items() if name.startswith((*SETTINGS, *PLACES))}
    hidden = {name: "(set)" for name in environment if name.startswith(PRIVATE)}
    return dict(sorted((shown | hidden).items()))


def driver_of(text: str) -> str | None:
    """The version in what NVIDIA's driver says of itself; None where there is none.

    Example:
        >>> driver_of("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs-builder)")
        '570.133.20'
    """
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text)
    return None if found is None else found[0]


def driver() -> str | None:
    """The version of NVIDIA's driver, which says which CUDA a torch may be built for; None without one."""
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as file:
            return driver_of(file.readline())
    except OSError:
        return None


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> dict[str, str]:
    import torch

    found = {"cpu": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return found


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    present = [f"{name} {inner}" for name, inner in value.items() if inner is not None]
    absent = [name for name, inner in value.items() if inner is None]
    return "; ".join(present or ["none"]) + (f"; without {', '.join(absent)}" if absent else "")
