"""Divide an update by squares that it is not part of: ADOPT, which takes momentum afterwards, and ACProp."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares


class ScaleByAdoptState(NamedTuple):
    """State of `scale_by_adopt`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of normalized updates
    nu: Tree  # running mean of squares


def fourth_root(count: Tensor) -> Tensor:
    """`count^(1/4)`, ADOPT's growing bound on a normalized update."""
    return count.to(torch.float64) ** 0.25


def scale_by_adopt(
    b1: float = 0.9,
    b2: float = 0.9999,
    eps: float = 1e-6,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Tensor], Tensor] = fourth_root,
) -> GradientTransform:
    """Normalize each update by the squares of those before it, then take the mean; converges for any `b2`.

        n = clip(u / max(sqrt(v), eps), -c_t, c_t);    m <- b1 m + (1 - b1) n;    u <- m;    v <- b2 v + (1 - b2) u^2

    The first update only starts `v` and moves nothing.

    Args:
        b1: Decay of the mean of normalized updates, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Floor of the root, in the units of the updates. Not negative.
        mu_dtype: Storage of `m`; float32 or wider by default.
        nesterov: Mix the normalized update into the mean once more.
        use_clipping: Bound the normalized updates.
        clip_value_fn: The bound as a function of the number of updates so far.

    Reference:
        Taniguchi et al., "ADOPT: modified Adam can converge with any beta2 with the optimal rate", 2024, Algorithm 2 (with the bound;
        Algorithm 1 without). arXiv:2411.02853
    """
    check_numbers("scale_by_adopt", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_adopt", NOT_NEGATIVE, eps=eps)

    def init(params: Tree) -> ScaleByAdoptState:
        return ScaleByAdoptState(scalar_like(params, 0, torch.int64), zeros_of_moments(params, mu_dtype), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdoptState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdoptState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu, old_nu = widen(leaves), tree.leaves(state.mu), tree.leaves(state.nu)
        started = (state.count > 0).double()
        normalized = [u / v.sqrt().clamp(min=eps) for u, v in zip(wide, old_nu, strict=True)]
        if use_clipping:
            bound = clip_value_fn(state.count)
            normalized = [_clipped(n, bound.to(v.dtype)) for n, v in zip(normalized, old_nu, strict=True)]
        mu_decay, nu_decay = 1 - started * (1 - b1), started * b2
        mu = decay_mean(old_mu, normalized, mu_decay)
        out = decay_mean(mu, normalized, mu_decay) if nesterov else mu
        nu = decay_squares(old_nu, wide, nu_decay)
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        new = ScaleByAdoptState(state.count + 1, tree.unflatten(structure, stored), tree.unflatten(structure, nu))
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_adopt")


def _clipped(x: Tensor, bound: Tensor) -> Tensor:
    """Bound real numbers by value, complex ones by magnitude."""
    if x.is_complex():
        return x * (bound / torch.maximum(x.abs(), bound)).nan_to_num(0.0)
    return torch.minimum(torch.maximum(x, -bound), bound)


class ScaleByAcpropState(NamedTuple):
    """State of `scale_by_acprop`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared deviations from it


def scale_by_acprop(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, eps_root: float = 1e-16) -> GradientTransform:
    """Divide each update by the running variance of those before it, around their running mean.

        u <- u / (sqrt(s^) + eps);    s <- b2 s + (1 - b2) (u - m)^2 + eps_root;    m <- b1 m + (1 - b1) u

    `s^` is `s` before this update, corrected for its start; 1 at the first.

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squared deviations, in [0, 1).
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added to `s` at every update, in the units of squared updates. Not negative.

    Reference:
        Zhuang et al., "Momentum centering and asynchronous update for adaptive gradient methods", 2021, Algorithm 3.
        arXiv:2110.05454
    """
    check_numbers("scale_by_acprop", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_acprop", NOT_NEGATIVE, eps=eps, eps_root=eps_root)

    def init(params: Tree) -> ScaleByAcpropState:
        return ScaleByAcpropState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAcpropState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAcpropState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu, old_nu = widen(leaves), tree.leaves(state.mu), tree.leaves(state.nu)
        first = state.count == 0
        correction = bias_correction(b2, state.count.clamp(min=1))
        before = [torch.where(first, torch.ones_like(v), v) for v in leafwise.div(old_nu, correction)]
        out = leafwise.div(wide, leafwise.add(leafwise.sqrt(before), eps))
        nu = leafwise.add(decay_squares(old_nu, leafwise.sub(wide, old_mu), b2), eps_root)
        mu = decay_mean(old_mu, wide, b1)
        new = ScaleByAcpropState(state.count + 1, tree.unflatten(structure, mu), tree.unflatten(structure, nu))
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_acprop")
