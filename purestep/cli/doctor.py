"""The command `purestep doctor`: what this machine has, to read and to paste into a report of a defect."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from .. import __version__
from . import documents

PACKAGES = ("torch", "numpy", "optree", "safetensors", "pydantic", "zarr", "click", "rich", "matplotlib")
EXTRAS = ("ase", "tensorboard", "wandb", "triton")
COMPILERS = ("g++", "clang++", "c++", "nvcc")
SETTINGS = ("OMP_", "MKL_", "CUDA_", "CUBLAS_", "NCCL_", "TORCH", "PYTORCH_", "PURESTEP_", "NO_COLOR", "TERM")


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
        "packages": {name: _version(name) for name in (*PACKAGES, *EXTRAS)},
        "devices": _devices(),
        "compilers": {name: shutil.which(name) for name in COMPILERS},
        "disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free in {os.getcwd()}",
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


def _version(package: str) -> str | None:
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
        return str(value)
    present = [f"{name} {inner}" for name, inner in value.items() if inner is not None]
    absent = [name for name, inner in value.items() if inner is None]
    return "; ".join(present or ["none"]) + (f"; without {', '.join(absent)}" if absent else "")
