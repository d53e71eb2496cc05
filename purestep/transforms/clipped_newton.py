"""Sophia: momentum divided by a light estimate of the diagonal Hessian, and clipped."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, POSITIVE, POSITIVE_LIMIT, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import bias_correction, decay_mean, widen, zeros_of_moments
from .parameters import wide_params


class HutchinsonState(NamedTuple):
    """State of `hutchinson_estimator_diag_hessian`."""

    rng_key: Tensor  # 0-d int64
    count: Tensor  # 0-d int64, estimates so far


def hutchinson_estimator_diag_hessian(key: int = 0) -> GradientTransform:
    """Replace the updates by an estimate of the diagonal of the Hessian: `z * (H z)` with random signs `z`.

    Needs `obj_fn`, the loss as a function of the parameters alone.

    Args:
        key: Start of the random stream; any whole number.

    Reference:
        Bekas et al., "An estimator for the diagonal of a matrix", 2007. Liu et al., "Sophia", 2023, Algorithm 1.
    """
    check_whole("hutchinson_estimator_diag_hessian", FINITE, key=key)

    def init(params: Tree) -> HutchinsonState:
        return HutchinsonState(scalar_like(params, key, torch.int64), scalar_like(params, 0, torch.int64))

    def update(
        updates: Tree, state: HutchinsonState, params: Tree = None, *, obj_fn: Callable[[Tree], Tensor], **extra: Any
    ) -> tuple[Tree, HutchinsonState]:
        leaves, structure = tree.flatten(params)
        own = rng.fold_in(state.rng_key, state.count)
        signs = [(2 * (rng.bits(own, draw, p.shape) & 1) - 1).to(p.dtype) for draw, p in enumerate(leaves)]
        gradient = torch.func.grad(lambda *ps: obj_fn(tree.unflatten(structure, ps)), argnums=tuple(range(len(leaves))))
        # the Hessian is symmetric, so reverse mode twice gives its product with the signs; forward mode has fewer rules
        products = torch.func.vjp(gradient, *leaves)[1](tuple(signs)) if leaves else ()
        estimate = [product * sign for product, sign in zip(products, signs, strict=True)]
        return tree.unflatten(structure, estimate), HutchinsonState(state.rng_key, state.count + 1)

    return GradientTransform(init, update, "hutchinson_estimator_diag_hessian", frozenset({"obj_fn"}))


class ScaleBySophiaState(NamedTuple):
    """State of `scale_by_sophia`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of estimates of the Hessian's diagonal
    win_rate: Tensor  # 0-d float64: share of elements that the latest update did not clip
    hessian: Any  # state of the estimator

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The share of elements that were not clipped; the paper wants 0.1 to 0.5 (by `gamma`)."""
        return {"sophia/win_rate": self.win_rate}


def scale_by_sophia(
    b1: float = 0.965,
    b2: float = 0.99,
    eps: float = 1e-8,
    gamma: float = 0.01,
    clip_threshold: float | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: GradientTransform | None = None,
    mu_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Divide the running mean by the estimated curvature, and clip: `u <- clip(m^ / max(gamma h, eps), -c, c)`.

        m <- b1 m + (1 - b1) u;    every `update_interval` updates, after use:  h <- b2 h + (1 - b2) estimate

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the mean of estimates, in [0, 1).
        eps: Floor of the scaled curvature. Not negative.
        gamma: Scales the curvature; larger clips less. Positive.
        clip_threshold: `c`, in the units of the parameters. Positive; None does not clip.
        update_interval: Updates between two estimates; at least 1. In one captured graph the estimate is computed at every update and used
            at these, so it does not save time.
        hessian_diagonal_fn: Transform whose updates are the estimates; `hutchinson_estimator_diag_hessian()` by default.
        mu_dtype: Storage of `m`; float32 or wider by default.

    Reference:
        Liu et al., "Sophia: a scalable stochastic second-order optimizer for language model pre-training", 2023, Algorithm 3.
        arXiv:2305.14342. As in optax the curvature is used before it is renewed, so that the first update is clipped everywhere.
    """
    check_numbers("scale_by_sophia", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_sophia", NOT_NEGATIVE, eps=eps)
    check_numbers("scale_by_sophia", POSITIVE, gamma=gamma)
    check_whole("scale_by_sophia", at_least(1), update_interval=update_interval)
    if clip_threshold is not None:
        check_numbers("scale_by_sophia", POSITIVE_LIMIT, clip_threshold=clip_threshold)
    estimator = hessian_diagonal_fn or hutchinson_estimator_diag_hessian()

    def init(params: Tree) -> ScaleBySophiaState:
        moments = (zeros_of_moments(params, mu_dtype), zeros_of_moments(params))
        return ScaleBySophiaState(scalar_like(params, 0, torch.int64), *moments, scalar_like(params, 1.0), estimator.init(params))

    def update(updates: Tree, state: ScaleBySophiaState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleBySophiaState]:
        wide_params(params, "scale_by_sophia")
        leaves, structure = tree.flatten(updates)
        count, old_mu, old_nu = state.count + 1, tree.leaves(state.mu), tree.leaves(state.nu)
        mu = decay_mean(old_mu, widen(leaves), b1)
        mean = leafwise.div(mu, bias_correction(b1, count))
        out = [m / (gamma * h).clamp(min=eps) for m, h in zip(mean, old_nu, strict=True)]
        win_rate = state.win_rate.clone()
        if clip_threshold is not None:
            free = [(u.abs() < clip_threshold).sum() for u in out]
            win_rate = torch.stack(free).sum().double() / max(sum(u.numel() for u in out), 1) if free else win_rate
            out = [u.clamp(-clip_threshold, clip_threshold) for u in out]
        due = state.count % update_interval == 0
        estimate, hessian = estimator.update(updates, state.hessian, params, **extra)
        nu = [torch.where(due, new, old) for new, old in zip(decay_mean(old_nu, widen(tree.leaves(estimate)), b2), old_nu, strict=True)]
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        moments = (tree.unflatten(structure, stored), tree.unflatten(structure, nu))
        new = ScaleBySophiaState(count, *moments, win_rate, tree.where(due, hessian, state.hessian))
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_sophia", estimator.needs)
