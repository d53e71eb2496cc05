"""Use the change of the gradient since the last update: optimistic gradients, and Adan's Nesterov momentum."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .adam_moments import adam_denominator
from .leafwise import Leaves
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares


def _previous(first: Tensor, stored: Tree, updates: Leaves) -> Leaves:
    """The updates of last time; at the first time these."""
    return [torch.where(first, u, old) for u, old in zip(updates, tree.leaves(stored), strict=True)]


class ScaleByOptimisticGradientState(NamedTuple):
    """State of `scale_by_optimistic_gradient`."""

    is_initial_step: Tensor  # 0-d bool
    alpha: Hyperparam
    beta: Hyperparam
    previous_gradient: Tree


def scale_by_optimistic_gradient(alpha: ScalarOrSchedule = 1.0, beta: ScalarOrSchedule = 1.0) -> GradientTransform:
    """Extrapolate: `u <- (alpha + beta) u - beta u_last`; the first time `u_last` is `u`.

    Args:
        alpha: Weight of the update; number or schedule, finite.
        beta: Weight of its change; number or schedule, finite.

    Reference:
        Mokhtari et al., "A unified analysis of extra-gradient and optimistic gradient methods for saddle point problems", 2019,
        eq. 9. arXiv:1901.08511
    """
    check_schedulable("scale_by_optimistic_gradient", FINITE, alpha=alpha, beta=beta)

    def init(params: Tree) -> ScaleByOptimisticGradientState:
        weights = (init_hyperparam(alpha, params), init_hyperparam(beta, params))
        return ScaleByOptimisticGradientState(scalar_like(params, True, torch.bool), *weights, zeros_of_moments(params))

    def update(
        updates: Tree, state: ScaleByOptimisticGradientState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, ScaleByOptimisticGradientState]:
        leaves, structure = tree.flatten(updates)
        wide = widen(leaves)
        a, b = next_hyperparam(alpha, state.alpha), next_hyperparam(beta, state.beta)
        previous = _previous(state.is_initial_step, state.previous_gradient, wide)
        out = leafwise.sub(leafwise.mul(wide, a.value + b.value), leafwise.mul(previous, b.value))
        new = ScaleByOptimisticGradientState(torch.zeros_like(state.is_initial_step), a, b, tree.unflatten(structure, wide))
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_optimistic_gradient")


class ScaleByAdanState(NamedTuple):
    """State of `scale_by_adan`."""

    count: Tensor  # 0-d int64, updates so far
    m: Tree  # running mean of updates
    v: Tree  # running mean of their changes
    n: Tree  # running mean of squares
    g: Tree  # updates of last time


def scale_by_adan(b1: float = 0.98, b2: float = 0.92, b3: float = 0.99, eps: float = 1e-8, eps_root: float = 0.0) -> GradientTransform:
    """Divide an extrapolated mean by the root of extrapolated squares, both from changes `d = u - u_last` (0 the first time).

        m <- b1 m + (1 - b1) u;   v <- b2 v + (1 - b2) d;   n <- b3 n + (1 - b3) (u + (1 - b2) d)^2
        u <- (m^ + (1 - b2) v^) / (sqrt(n^ + eps_root) + eps)

    Args:
        b1: Decay of the mean of updates, in [0, 1).
        b2: Decay of the mean of their changes, in [0, 1).
        b3: Decay of the squares, in [0, 1).
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added inside the root, in the units of squared updates. Not negative.

    Reference:
        Xie et al., "Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models", 2022, Algorithm 1.
        arXiv:2208.06677. As in optax: the decays are one minus the paper's, and the weight of the change is `1 - b2` where the authors'
        code has `b2`.
    """
    check_numbers("scale_by_adan", DECAY, b1=b1, b2=b2, b3=b3)
    check_numbers("scale_by_adan", NOT_NEGATIVE, eps=eps, eps_root=eps_root)

    def init(params: Tree) -> ScaleByAdanState:
        m, v, g = (zeros_of_moments(params) for _ in range(3))
        return ScaleByAdanState(scalar_like(params, 0, torch.int64), m, v, zeros_of_squares(params), g)

    def update(updates: Tree, state: ScaleByAdanState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdanState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        change = leafwise.sub(wide, _previous(state.count == 0, state.g, wide))
        m, v = decay_mean(tree.leaves(state.m), wide, b1), decay_mean(tree.leaves(state.v), change, b2)
        n = decay_squares(tree.leaves(state.n), leafwise.add(wide, leafwise.mul(change, 1 - b2)), b3)
        ahead = leafwise.mul(leafwise.div(v, bias_correction(b2, count)), 1 - b2)
        mean = leafwise.add(leafwise.div(m, bias_correction(b1, count)), ahead)
        out = leafwise.div(mean, adam_denominator(n, bias_correction(b3, count), 1.0, eps, eps_root))
        return tree.unflatten(structure, out), ScaleByAdanState(count, *(tree.unflatten(structure, x) for x in (m, v, n, wide)))

    return GradientTransform(init, update, "scale_by_adan")
