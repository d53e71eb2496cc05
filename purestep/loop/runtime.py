"""Settings of the process: arithmetic, threads, seeds of the global generators. Chosen in one place, and written down as they came out.

Nothing of the package changes them by itself; a program that owns its process does, with `use_runtime`.
"""

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it when it first runs, and without it sums in an order of its own


class RuntimeSettings(NamedTuple):
    """What to ask of the process; None leaves a setting as it is."""

    deterministic: bool | Literal["warn"] | None = None
    """Refuse operations that give other bits each time; `warn` names them and goes on."""
    tf32: bool | None = None
    """Let float32 products of matrices and convolutions round their inputs to 10 bits on CUDA devices that can."""
    cudnn_benchmark: bool | None = None
    """Let cuDNN try its algorithms at each new shape; what it finds may differ from run to run."""
    num_threads: int | None = None
    """Threads of one operation on the CPU; sums may depend on it."""
    seed: int | None = None
    """Of the global generators of Python, NumPy and torch, from which modules draw their first weights."""


@contextlib.contextmanager
def use_runtime(settings: RuntimeSettings) -> Iterator[dict[str, Any]]:
    """Apply settings, and put back what was before, generators included, at the end.

    Yields:
        What now holds, as plain JSON: asked for, or as it was. See `runtime_record`.

    Raises:
        ValueError: For a setting that contradicts another or is out of range; nothing has been changed then.
    """
    _check(settings)
    before = _Before.now()
    try:
        _apply(settings)
        yield runtime_record(settings.seed)
    finally:
        before.put_back()


def runtime_record(seed: int | None = None) -> dict[str, Any]:
    """The settings that hold, as plain JSON, with what decides about bits besides: versions and device.

    Args:
        seed: That of the global generators, which cannot be read back.
    """
    cuda = torch.cuda.is_available()
    return {
        "deterministic": _deterministic(),
        "tf32_matmul": torch.get_float32_matmul_precision() != "highest",
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cublas_workspace": os.environ.get(_CUBLAS),
        "num_threads": torch.get_num_threads(),
        "seed": seed,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _deterministic() -> bool | str:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return "warn" if warns and torch.are_deterministic_algorithms_enabled() else torch.are_deterministic_algorithms_enabled()


def _check(settings: RuntimeSettings) -> None:
    if settings.deterministic is True and settings.cudnn_benchmark:
        raise ValueError("RuntimeSettings: deterministic=True contradicts cudnn_benchmark=True, which chooses anew each time")
    if settings.num_threads is not None and settings.num_threads < 1:
        raise ValueError(f"RuntimeSettings: num_threads must be at least 1, got {settings.num_threads}")
    if settings.seed is not None and not 0 <= settings.seed < 2**32:  # NumPy's range
        raise ValueError(f"RuntimeSettings: seed must lie in [0, 2**32), got {settings.seed}")


def _apply(settings: RuntimeSettings) -> None:
    if settings.deterministic is not None:
        torch.use_deterministic_algorithms(bool(settings.deterministic), warn_only=settings.deterministic == "warn")
        if settings.deterministic:
            os.environ.setdefault(_CUBLAS, ":4096:8")
            torch.backends.cudnn.benchmark = False
    if settings.cudnn_benchmark is not None:
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark
    if settings.tf32 is not None:
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = settings.tf32
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    if settings.seed is not None:
        random.seed(settings.seed)
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)


class _Before(NamedTuple):
    """Everything that `_apply` may change."""

    deterministic: bool
    warn_only: bool
    benchmark: bool
    matmul: str
    cudnn_tf32: bool
    threads: int
    cublas: str | None
    generators: tuple[Any, Any, Any, Any]

    @classmethod
    def now(cls) -> "_Before":
        return cls(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.get_num_threads(),
            os.environ.get(_CUBLAS),
            (random.getstate(), np.random.get_state(), torch.get_rng_state(), _cuda_states()),
        )

    def put_back(self) -> None:
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.benchmark = self.benchmark
        torch.set_float32_matmul_precision(self.matmul)
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.set_num_threads(self.threads)
        os.environ.pop(_CUBLAS, None)
        if self.cublas is not None:
            os.environ[_CUBLAS] = self.cublas
        python, numpy, cpu, cuda = self.generators
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _cuda_states() -> list[Any]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
