"""A running mean of the updates themselves: `ema`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import bias_correction, decay_mean, widen, zeros_of_moments


class EmaState(NamedTuple):
    """State of `ema`."""

    count: Tensor  # 0-d int64, updates so far
    ema: Tree  # running mean of updates


def ema(decay: float, debias: bool = True, accumulator_dtype: torch.dtype | None = None) -> GradientTransform:
    """Replace the updates by their running mean: `m <- decay m + (1 - decay) u; u <- m / (1 - decay^t)`.

    `trace` is the same without the factors. The average of *parameters* is a hook.

    Args:
        decay: In [0, 1).
        debias: Divide by `1 - decay^t`.
        accumulator_dtype: Storage of the mean; float32 or wider by default.

    Reference:
        optax 0.2.8 `ema`. The correction is Adam's: Kingma and Ba, "Adam: a method for stochastic optimization", 2015, section 3.
        arXiv:1412.6980
    """
    check_numbers("ema", DECAY, decay=decay)

    def init(params: Tree) -> EmaState:
        return EmaState(scalar_like(params, 0, torch.int64), zeros_of_moments(params, accumulator_dtype))

    def update(updates: Tree, state: EmaState, params: Tree = None, **extra: Any) -> tuple[Tree, EmaState]:
        leaves, structure = tree.flatten(updates)
        old, count = tree.leaves(state.ema), state.count + 1
        mean = decay_mean(old, widen(leaves), decay)
        out = leafwise.div(mean, bias_correction(decay, count)) if debias else mean
        stored = leafwise.cast(mean, [m.dtype for m in old])
        return tree.unflatten(structure, out), EmaState(count, tree.unflatten(structure, stored))

    return GradientTransform(init, update, "ema")
