"""Adadelta: give updates the units of the parameters, by the size of earlier updates."""

from typing import Any, NamedTuple

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import decay_squares, widen, zeros_of_squares


class ScaleByAdadeltaState(NamedTuple):
    """State of `scale_by_adadelta`."""

    e_g: Tree  # running mean of squared updates that came in
    e_x: Tree  # running mean of squared updates that went out


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> GradientTransform:
    """Divide by the size of recent updates, and multiply by that of recent results: `u <- u sqrt(e_x + eps) / sqrt(e_g + eps)`.

    Args:
        rho: Decay of both means, in [0, 1).
        eps: Added inside both roots, in the units of squared updates. Not negative.

    Reference:
        Zeiler, "ADADELTA: an adaptive learning rate method", 2012, Algorithm 1. arXiv:1212.5701
    """
    check_numbers("scale_by_adadelta", DECAY, rho=rho)
    check_numbers("scale_by_adadelta", NOT_NEGATIVE, eps=eps)

    def init(params: Tree) -> ScaleByAdadeltaState:
        return ScaleByAdadeltaState(zeros_of_squares(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdadeltaState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdadeltaState]:
        leaves, structure = tree.flatten(updates)
        wide, old = widen(leaves), tree.leaves(state.e_x)
        e_g = decay_squares(tree.leaves(state.e_g), wide, rho)
        sizes = leafwise.div(leafwise.sqrt(leafwise.add(old, eps)), leafwise.sqrt(leafwise.add(e_g, eps)))
        out = leafwise.mul(wide, sizes)
        e_x = decay_squares(old, out, rho)
        return tree.unflatten(structure, out), ScaleByAdadeltaState(tree.unflatten(structure, e_g), tree.unflatten(structure, e_x))

    return GradientTransform(init, update, "scale_by_adadelta")
