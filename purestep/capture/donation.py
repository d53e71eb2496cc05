"""What a state must be like before its memory is given away."""

from typing import Any

from torch import Tensor

from ..core import tree
from ..errors import CaptureError


def check_own_memory(state: Any) -> None:
    """Refuse a state two of whose leaves share memory: written in place, one would change the other.

    Raises:
        CaptureError: Naming the leaves.
    """
    if getattr(state, "_owns_memory", False):
        return
    seen: dict[int, str] = {}
    for path, leaf in tree.items(state):
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            continue
        if any(stride == 0 and size > 1 for size, stride in zip(leaf.shape, leaf.stride(), strict=True)):
            raise CaptureError(f"donate=True: {path} is expanded, its elements share memory; pass ps.tree.clone(state)")
        other = seen.setdefault(leaf.untyped_storage()._cdata, path)
        if other != path:
            raise CaptureError(f"donate=True: {path} and {other} share memory; pass ps.tree.clone(state), in which each has its own")


def mark_own_memory(state: Any) -> None:
    """Note that a state came out of a donating step, so that it need not be checked again."""
    if hasattr(state, "__dict__"):
        object.__setattr__(state, "_owns_memory", True)
