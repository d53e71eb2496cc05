"""What a run keeps in memory: exact bytes of the state, peaks of the process and of the devices."""

import sys
from typing import Any

import torch

from ..core import tree
from ..core.state import TrainState

_PARTS = ("params", "buffers", "opt_state", "hook_state")


def memory_report(state: TrainState) -> dict[str, Any]:
    """Bytes by part, as plain JSON.

    A step that does not donate has the state twice, besides gradients (as large as the trainable parameters) and activations.

    Returns:
        `state` by part, exact; `host_peak_bytes` of this process so far, where the system tells; `cuda` by device, of torch's allocator.
    """
    parts = {part: tree.num_bytes(getattr(state, part)) for part in _PARTS}
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return {
        "state": {**parts, "total": tree.num_bytes(state)},
        "host_peak_bytes": _host_peak(),
        "cuda": {
            f"cuda:{device}": {
                "allocated_bytes": torch.cuda.memory_allocated(device),
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
            }
            for device in devices
        },
    }


def memory_table(state: TrainState) -> str:
    """The same for people."""
    report = memory_report(state)
    rows = [(f"state.{part}", count) for part, count in report["state"].items()]
    rows += [("host, peak", report["host_peak_bytes"])] if report["host_peak_bytes"] is not None else []
    rows += [(f"{device}, {name.removesuffix('_bytes')}", count) for device, at in report["cuda"].items() for name, count in at.items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {tree.format_bytes(count):>10}" for name, count in rows)


def _host_peak() -> int | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
