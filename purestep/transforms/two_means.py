"""AdEMAMix: a slow running mean of the updates besides the fast one."""

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
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares


class ScaleByAdemamixState(NamedTuple):
    """State of `scale_by_ademamix`."""

    count: Tensor  # 0-d int64, updates so far
    b3: Hyperparam
    alpha: Hyperparam
    m1: Tree  # fast mean
    m2: Tree  # slow mean
    nu: Tree  # mean of squares


def scale_by_ademamix(
    b1: float = 0.9,
    b2: float = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Add a slow mean to Adam's: `u <- (m1^ + alpha m2) / (sqrt(v^ + eps_root) + eps)`.

        m1 <- b1 m1 + (1 - b1) u,   m2 <- b3 m2 + (1 - b3) u,   v <- b2 v + (1 - b2) u^2;   m2 has no bias correction

    Args:
        b1: Decay of the fast mean, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        b3: Decay of the slow mean, in [0, 1); number or schedule (the paper warms it up).
        alpha: Weight of the slow mean; number or schedule, finite.
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added inside the root. Not negative.
        mu_dtype: Storage of both means; float32 or wider by default.

    Reference:
        Pagliardini et al., "The AdEMAMix optimizer: better, faster, older", 2024, Algorithm 1. arXiv:2409.03137
    """
    check_numbers("scale_by_ademamix", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_ademamix", NOT_NEGATIVE, eps=eps, eps_root=eps_root)
    check_schedulable("scale_by_ademamix", DECAY, b3=b3)
    check_schedulable("scale_by_ademamix", FINITE, alpha=alpha)

    def init(params: Tree) -> ScaleByAdemamixState:
        means = [zeros_of_moments(params, mu_dtype) for _ in range(2)]
        scalars = (scalar_like(params, 0, torch.int64), init_hyperparam(b3, params), init_hyperparam(alpha, params))
        return ScaleByAdemamixState(*scalars, *means, zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdemamixState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdemamixState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        slow_decay, weight = next_hyperparam(b3, state.b3), next_hyperparam(alpha, state.alpha)
        old1, old2 = tree.leaves(state.m1), tree.leaves(state.m2)
        m1, m2 = decay_mean(old1, wide, b1), decay_mean(old2, wide, slow_decay.value)
        nu = decay_squares(tree.leaves(state.nu), wide, b2)
        both = leafwise.add(leafwise.div(m1, bias_correction(b1, count)), leafwise.mul(m2, weight.value))
        out = leafwise.div(both, adam_denominator(nu, bias_correction(b2, count), 1.0, eps, eps_root))
        stored = [leafwise.cast(new, [leaf.dtype for leaf in old]) for new, old in ((m1, old1), (m2, old2))]
        trees = [tree.unflatten(structure, leaves) for leaves in (*stored, nu)]
        return tree.unflatten(structure, out), ScaleByAdemamixState(count, slow_decay, weight, *trees)

    return GradientTransform(init, update, "scale_by_ademamix")


class ScaleBySimplifiedAdemamixState(NamedTuple):
    """State of `scale_by_simplified_ademamix`."""

    count: Tensor  # 0-d int64, updates so far
    alpha: Hyperparam
    m: Tree  # decaying sum of updates
    nu: Tree  # mean of squares


def scale_by_simplified_ademamix(
    b1: float = 0.99, b2: float = 0.95, alpha: ScalarOrSchedule = 0.0, eps: float = 1e-8, eps_root: float = 0.0
) -> GradientTransform:
    """Add the current update to one decaying sum: `u <- (m + alpha u) / (sqrt(v^ + eps_root) + eps)` with `m <- b1 m + u`.

    The sum is about `1 / (1 - b1)` times as large as a mean, and the learning rate that much smaller.

    Args:
        b1: Decay of the sum, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        alpha: Weight of the current update; number or schedule, finite.
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added inside the root, in the units of squared updates. Not negative.

    Reference:
        Morwani et al., "Connections between schedule-free optimizers, AdEMAMix, and accelerated SGD variants", 2025, Algorithm 1.
        arXiv:2502.02431
    """
    check_numbers("scale_by_simplified_ademamix", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_simplified_ademamix", NOT_NEGATIVE, eps=eps, eps_root=eps_root)
    check_schedulable("scale_by_simplified_ademamix", FINITE, alpha=alpha)

    def init(params: Tree) -> ScaleBySimplifiedAdemamixState:
        scalars = (scalar_like(params, 0, torch.int64), init_hyperparam(alpha, params))
        return ScaleBySimplifiedAdemamixState(*scalars, zeros_of_moments(params), zeros_of_squares(params))

    def update(
        updates: Tree, state: ScaleBySimplifiedAdemamixState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, ScaleBySimplifiedAdemamixState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        weight = next_hyperparam(alpha, state.alpha)
        m = leafwise.add(leafwise.mul(tree.leaves(state.m), b1), wide)
        nu = decay_squares(tree.leaves(state.nu), wide, b2)
        both = leafwise.add(m, leafwise.mul(wide, weight.value))
        out = leafwise.div(both, adam_denominator(nu, bias_correction(b2, count), 1.0, eps, eps_root))
        new = ScaleBySimplifiedAdemamixState(count, weight, tree.unflatten(structure, m), tree.unflatten(structure, nu))
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_simplified_ademamix")
