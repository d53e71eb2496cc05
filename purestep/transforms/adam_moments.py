"""Adam's scaling by running moments: `scale_by_adam`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .leafwise import Leaves
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared updates


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransform:
    """Divide the running mean of updates by the root of the running mean of their squares.

        m <- b1 m + (1 - b1) u          m^ = m / (1 - b1^t)
        v <- b2 v + (1 - b2) u^2        v^ = v / (1 - b2^t)
        u <- m^ / (sqrt(v^ + eps_root) + eps)

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Added outside the root, in the units of the updates; torch's `eps`. Not negative.
        eps_root: Added inside the root, which keeps derivatives through the update finite. Not negative.
        mu_dtype: Storage of `m`; float32 or wider by default.
        nesterov: Use `b1 m / (1 - b1^(t+1)) + (1 - b1) u / (1 - b1^t)` in place of `m^` (Dozat, without his schedule of momentum).

    Raises:
        ValueError: If `b1` or `b2` lies elsewhere: at 1 all parameters would become NaN.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, Algorithm 1. arXiv:1412.6980
        Dozat, "Incorporating Nesterov momentum into Adam", 2016.
    """
    check_numbers("scale_by_adam", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_adam", NOT_NEGATIVE, eps=eps, eps_root=eps_root)

    def init(params: Tree) -> ScaleByAdamState:
        return ScaleByAdamState(scalar_like(params, 0, torch.int64), zeros_of_moments(params, mu_dtype), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdamState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdamState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu = widen(leaves), tree.leaves(state.mu)
        count = state.count + 1
        mu = decay_mean(old_mu, wide, b1)
        nu = decay_squares(tree.leaves(state.nu), wide, b2)
        mean, correction = (looking_ahead(mu, wide, b1, count), 1.0) if nesterov else (mu, bias_correction(b1, count))
        out = leafwise.div(mean, adam_denominator(nu, bias_correction(b2, count), correction, eps, eps_root))
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        return tree.unflatten(structure, out), ScaleByAdamState(count, tree.unflatten(structure, stored), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_adam")


def adam_denominator(nu: Leaves, nu_correction: Tensor, mu_correction: Tensor | float, eps: float, eps_root: float) -> Leaves:
    """`mu_correction (sqrt(nu / nu_correction + eps_root) + eps)`; both corrections enter as one factor where they can."""
    if isinstance(eps_root, float | int) and eps_root == 0:
        return leafwise.add(leafwise.mul(leafwise.sqrt(nu), mu_correction / nu_correction.sqrt()), eps * mu_correction)
    root = leafwise.sqrt(leafwise.add(leafwise.div(nu, nu_correction), eps_root))
    return leafwise.mul(leafwise.add(root, eps), mu_correction)


def looking_ahead(mu: Leaves, updates: Leaves, b1: float, count: Tensor) -> Leaves:
    """The bias-corrected mean after one more step with the same update: `b1 m / (1 - b1^(t+1)) + (1 - b1) u / (1 - b1^t)`."""
    ahead = leafwise.mul(mu, b1 / bias_correction(b1, count + 1))
    return leafwise.add(ahead, leafwise.mul(updates, (1 - b1) / bias_correction(b1, count)))
