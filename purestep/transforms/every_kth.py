"""Sum updates and let them through every k-th time: `apply_every`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen, zeros_of_moments


class ApplyEveryState(NamedTuple):
    """State of `apply_every`."""

    count: Tensor  # 0-d int64, updates summed so far, modulo k
    grad_acc: Tree  # their sum


def apply_every(k: int = 1) -> GradientTransform:
    """Emit the sum of k updates every k-th time, zeros in between.

    Unlike `accumulate` it is no gate: every other part of the chain runs each time, on zeros too.

    Args:
        k: Updates that are summed into one; at least 1.

    Reference:
        optax 0.2.8 `apply_every`.
    """
    check_whole("apply_every", at_least(1), k=k)

    def init(params: Tree) -> ApplyEveryState:
        return ApplyEveryState(scalar_like(params, 0, torch.int64), zeros_of_moments(params))

    def update(updates: Tree, state: ApplyEveryState, params: Tree = None, **extra: Any) -> tuple[Tree, ApplyEveryState]:
        leaves, structure = tree.flatten(updates)
        total = leafwise.add(tree.leaves(state.grad_acc), widen(leaves))
        emit = state.count == k - 1
        kept = [torch.where(emit, 0, t) for t in total]
        out = [torch.where(emit, t, 0) for t in total]
        return tree.unflatten(structure, out), ApplyEveryState((state.count + 1) % k, tree.unflatten(structure, kept))

    return GradientTransform(init, update, "apply_every")
