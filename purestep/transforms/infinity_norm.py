"""Adamax: divide by the decaying maximum of magnitudes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import bias_correction, decay_mean, widen, zeros_of_moments, zeros_of_squares


class ScaleByAdamaxState(NamedTuple):
    """State of `scale_by_adamax`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # decaying maximum of magnitudes


def scale_by_adamax(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> GradientTransform:
    """Divide the running mean by the decaying maximum: `n <- max(b2 n, |u| + eps); u <- m^ / n`.

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the maximum, in [0, 1).
        eps: Added to each magnitude, in the units of the updates. Not negative.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, Algorithm 2. arXiv:1412.6980. `eps` is added as in torch.
    """
    check_numbers("scale_by_adamax", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_adamax", NOT_NEGATIVE, eps=eps)

    def init(params: Tree) -> ScaleByAdamaxState:
        return ScaleByAdamaxState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdamaxState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdamaxState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        mu = decay_mean(tree.leaves(state.mu), wide, b1)
        nu = leafwise.maximum(leafwise.mul(tree.leaves(state.nu), b2), leafwise.add(leafwise.abs(wide), eps))
        out = leafwise.div(leafwise.div(mu, bias_correction(b1, count)), nu)
        return tree.unflatten(structure, out), ScaleByAdamaxState(count, tree.unflatten(structure, mu), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_adamax")
