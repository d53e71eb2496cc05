"""The peak of memory during some steps, in the process that runs them. Linux only.

The resident size at rest holds much that has nothing to do with the step: code, and what a compiler left. So the peak is what live
tensors take at rest, counted by storage, plus how far the resident size rises above its value at rest. This is exact only where memory
that is freed goes back at once: set `ENVIRONMENT` before the process starts.
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def live_tensor_bytes() -> int:
    """Bytes of all storages that some tensor holds; meta tensors have a size, but no memory."""
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(thing):
            storage = thing.untyped_storage()
            storages[storage._cdata] = 0 if thing.is_meta else storage.nbytes()
    return sum(storages.values())


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_bytes(run: Callable[[int], float], steps: int) -> int:
    """Largest number of bytes that tensors took at one time during these steps."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    held = live_tensor_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    rest = _resident("VmRSS")
    run(steps)
    return held + _resident("VmHWM") - rest
