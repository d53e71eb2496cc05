"""COCOB: steps that bet a growing fortune on the sign of the next gradient; no learning rate."""

from typing import Any, NamedTuple

import torch

from ..core import tree
from ..core.ranges import NOT_NEGATIVE, check_numbers
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .moments import widen, zeros_of_moments
from .parameters import wide_params


class CocobState(NamedTuple):
    """State of `scale_by_cocob`; trees like the parameters."""

    init_particles: Tree  # where training began
    cumulative_gradients: Tree  # minus the sum of gradients
    scale: Tree  # largest magnitude so far
    subgradients: Tree  # sum of magnitudes
    reward: Tree  # fortune won so far, not negative


def scale_by_cocob(alpha: float = 100.0, eps: float = 1e-8) -> GradientTransform:
    """Move each parameter to its start plus a bet; updates are differences to that place.

        L <- max(L, |u|);   G <- G + |u|;   R <- max(R - u (p - p0), 0);   C <- C - u
        p <- p0 + C / (L max(G + L, alpha L)) (L + R)

    Args:
        alpha: Holds back the first bets. Not negative; the paper has 100.
        eps: First value of `L`, in the units of the updates. Not negative.

    Reference:
        Orabona and Tommasi, "Training deep networks without learning rates through coin betting", 2017, Algorithm 2 (COCOB-Backprop).
        arXiv:1705.07795
    """
    check_numbers("scale_by_cocob", NOT_NEGATIVE, alpha=alpha, eps=eps)

    def init(params: Tree) -> CocobState:
        zeros = [zeros_of_moments(params) for _ in range(3)]
        scale = tree.map(lambda z: torch.full_like(z, eps), zeros[0])
        return CocobState(copy_of(params), zeros[0], scale, zeros[1], zeros[2])

    def update(updates: Tree, state: CocobState, params: Tree = None, **extra: Any) -> tuple[Tree, CocobState]:
        leaves, structure = tree.flatten(updates)
        u, p, p0 = widen(leaves), wide_params(params, "scale_by_cocob"), tree.leaves(state.init_particles)
        size = leafwise.abs(u)
        largest = leafwise.maximum(tree.leaves(state.scale), size)
        total = leafwise.add(tree.leaves(state.subgradients), size)
        lost = leafwise.mul(u, leafwise.sub(p, p0))
        reward = [r.clamp(min=0) for r in leafwise.sub(tree.leaves(state.reward), lost)]
        bet = leafwise.sub(tree.leaves(state.cumulative_gradients), u)
        caution = leafwise.mul(largest, leafwise.maximum(leafwise.add(total, largest), leafwise.mul(largest, alpha)))
        moved = leafwise.mul(leafwise.div(bet, caution), leafwise.add(largest, reward))
        out = leafwise.sub(leafwise.add(p0, moved), p)
        trees = [tree.unflatten(structure, leaves) for leaves in (bet, largest, total, reward)]
        return tree.unflatten(structure, out), CocobState(state.init_particles, *trees)

    return GradientTransform(init, update, "scale_by_cocob")
