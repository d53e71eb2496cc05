"""Heavy-ball momentum: `trace`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, FRACTION, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen, zeros_of_moments


class TraceState(NamedTuple):
    """State of `trace`."""

    trace: Tree  # decaying sum of updates; float32 or wider
    count: Tensor | tuple[()]  # 0-d int64, updates so far; () without dampening, which alone asks for it


def trace(
    decay: float, nesterov: bool = False, accumulator_dtype: torch.dtype | None = None, *, dampening: float = 0.0
) -> GradientTransform:
    """Add a decaying sum of past updates: `t <- u + decay t; u <- t`, or `u <- u + decay t` with Nesterov.

    Args:
        decay: In [0, 1); torch calls it `momentum`.
        nesterov: Look ahead by one more decay, as `torch.optim.SGD(nesterov=True)` does.
        accumulator_dtype: Storage of `t`; float32 or wider by default.
        dampening: In [0, 1]: new updates enter `t` with weight `1 - dampening`, the very first with weight 1, as in `torch.optim.SGD`.

    Reference:
        Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013. The learning rate stands
        outside `t`, as in torch and optax.
    """
    check_numbers("trace", DECAY, decay=decay)
    check_numbers("trace", FRACTION, dampening=dampening)

    def init(params: Tree) -> TraceState:
        count = () if isinstance(dampening, float | int) and dampening == 0 else scalar_like(params, 0, torch.int64)
        return TraceState(zeros_of_moments(params, accumulator_dtype), count)

    def update(updates: Tree, state: TraceState, params: Tree = None, **extra: Any) -> tuple[Tree, TraceState]:
        leaves, structure = tree.flatten(updates)
        wide, old = widen(leaves), tree.leaves(state.trace)
        entering, count = wide, state.count
        if isinstance(count, Tensor):
            entering = leafwise.mul(wide, 1.0 - dampening * (count > 0).double())
            count = count + 1
        new = leafwise.add(leafwise.mul(leafwise.cast(old, [u.dtype for u in wide]), decay), entering)
        out = leafwise.add(leafwise.mul(new, decay), wide) if nesterov else new
        stored = leafwise.cast(new, [t.dtype for t in old])
        return tree.unflatten(structure, out), TraceState(tree.unflatten(structure, stored), count)

    return GradientTransform(init, update, "trace")
