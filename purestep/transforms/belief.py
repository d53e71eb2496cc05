"""AdaBelief: divide by how far updates are from what their mean made us expect."""

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
from .corrected_mean import corrected_mean
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares


class ScaleByBeliefState(NamedTuple):
    """State of `scale_by_belief`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared deviations from it


def scale_by_belief(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, eps_root: float = 1e-16, *, nesterov: bool = False
) -> GradientTransform:
    """Divide the running mean by the root of the running variance around it.

        m <- b1 m + (1 - b1) u;    s <- b2 s + (1 - b2) (u - m)^2 + eps_root;    u <- m^ / (sqrt(s^) + eps)

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squared deviations, in [0, 1).
        eps: Added outside the root.
        eps_root: Added to `s` at every update, so that it piles up to `eps_root / (1 - b2)`, as in the paper. Not negative.
        nesterov: Look ahead, see `corrected_mean`.

    Reference:
        Zhuang et al., "AdaBelief optimizer: adapting stepsizes by the belief in observed gradients", 2020, Algorithm 2.
        arXiv:2010.07468
    """
    check_numbers("scale_by_belief", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_belief", NOT_NEGATIVE, eps=eps, eps_root=eps_root)

    def init(params: Tree) -> ScaleByBeliefState:
        return ScaleByBeliefState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByBeliefState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByBeliefState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        mu = decay_mean(tree.leaves(state.mu), wide, b1)
        nu = leafwise.add(decay_squares(tree.leaves(state.nu), leafwise.sub(wide, mu), b2), eps_root)
        mean = corrected_mean(mu, wide, b1, count, nesterov)
        out = leafwise.div(mean, adam_denominator(nu, bias_correction(b2, count), 1.0, eps, 0.0))
        return tree.unflatten(structure, out), ScaleByBeliefState(count, tree.unflatten(structure, mu), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_belief")
