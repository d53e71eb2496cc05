"""Calling a transform that another one wraps."""

from typing import Any

from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from ..errors import TransformError


def update_inner(
    inner: GradientTransform, wrapper: str, updates: Tree, state: Any, params: Tree, extra: dict[str, Any]
) -> tuple[Tree, Any]:
    """The update of `inner`, which must not hold a gate.

    Raises:
        TransformError: If it does: the wrapper's own state would move on when the gate says no.
    """
    out, new_state = inner.update(updates, state, params, **extra)
    if isinstance(out, Gated):
        raise TransformError(f"{wrapper}: {inner.name} holds a gate; put gates before it: chain(gate, {wrapper}(...))")
    return out, new_state
