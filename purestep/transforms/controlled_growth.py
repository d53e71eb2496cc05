"""Yogi: let the mean of squares grow by no more than the square that drives it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .adam_moments import adam_denominator
from .moments import bias_correction, decay_mean, magnitude_squared, widen, zeros_of_moments, zeros_of_squares


class ScaleByYogiState(NamedTuple):
    """State of `scale_by_yogi`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # slowly growing squares


def scale_by_yogi(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3, eps_root: float = 0.0, initial_accumulator_value: float = 1e-6
) -> GradientTransform:
    """Divide the running mean by slowly growing squares: `v <- v - (1 - b2) sign(v - u^2) u^2; u <- m^ / (sqrt(v^ + eps_root) + eps)`.

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares, in [0, 1): an update changes them by `1 - b2` times its own square.
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added inside the root, in the units of squared updates. Not negative.
        initial_accumulator_value: What both moments start from. Not negative.

    Reference:
        Zaheer et al., "Adaptive methods for nonconvex optimization", 2018, Algorithm 2. Corrected for the start as in optax.
    """
    check_numbers("scale_by_yogi", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_yogi", NOT_NEGATIVE, eps=eps, eps_root=eps_root, initial_accumulator_value=initial_accumulator_value)

    def init(params: Tree) -> ScaleByYogiState:
        moments = (zeros_of_moments(params), zeros_of_squares(params))
        filled = [tree.map(lambda z: torch.full_like(z, initial_accumulator_value), moment) for moment in moments]
        return ScaleByYogiState(scalar_like(params, 0, torch.int64), *filled)

    def update(updates: Tree, state: ScaleByYogiState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByYogiState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        mu = decay_mean(tree.leaves(state.mu), wide, b1)
        squares, old = magnitude_squared(wide), tree.leaves(state.nu)
        growth = leafwise.mul(leafwise.mul(leafwise.sign(leafwise.sub(old, squares)), squares), 1 - b2)
        nu = leafwise.sub(old, growth)
        mean = leafwise.div(mu, bias_correction(b1, count))
        out = leafwise.div(mean, adam_denominator(nu, bias_correction(b2, count), 1.0, eps, eps_root))
        return tree.unflatten(structure, out), ScaleByYogiState(count, tree.unflatten(structure, mu), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_yogi")
