"""Scalings by running moments that change one thing in Adam: `scale_by_amsgrad`, `scale_by_radam`, `scale_by_nadam`."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .adam_moments import ScaleByAdamState, adam_denominator, looking_ahead
from .moments import bias_correction, decay_mean, decay_squares, power, widen, zeros_of_moments, zeros_of_squares

Convention = Literal["optax", "torch"]


def check_convention(name: str, convention: str) -> None:
    """Raise ValueError unless the convention is one of the two libraries'."""
    if convention not in ("optax", "torch"):
        raise ValueError(f"{name}: convention must be 'optax' or 'torch', got {convention!r}")


class ScaleByAmsgradState(NamedTuple):
    """State of `scale_by_amsgrad`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared updates
    nu_max: Tree  # largest nu so far, bias-corrected or raw


def scale_by_amsgrad(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    convention: Convention = "optax",
) -> GradientTransform:
    """Adam's scaling with the largest second moment so far, which cannot shrink again.

        v^max <- max(v^max, v / (1 - b2^t));      u <- m^ / (sqrt(v^max + eps_root) + eps)        (optax)
        v^max <- max(v^max, v);                   u <- m^ / (sqrt(v^max / (1 - b2^t)) + eps)      (torch)

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Added outside the root. Not negative.
        eps_root: Added inside the root. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        bias_correction_mu: False leaves the mean as it is, as in the paper.
        bias_correction_nu: False leaves the squares as they are, as in the paper.
        convention: "torch" takes the maximum before the bias correction, as `torch.optim.Adam(amsgrad=True)` does.

    Reference:
        Reddi et al., "On the convergence of Adam and beyond", 2018, Algorithm 2, which has no bias correction. arXiv:1904.09237
    """
    check_numbers("scale_by_amsgrad", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_amsgrad", NOT_NEGATIVE, eps=eps, eps_root=eps_root)
    check_convention("scale_by_amsgrad", convention)

    def init(params: Tree) -> ScaleByAmsgradState:
        count = scalar_like(params, 0, torch.int64)
        return ScaleByAmsgradState(count, zeros_of_moments(params, mu_dtype), zeros_of_squares(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAmsgradState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAmsgradState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu = widen(leaves), tree.leaves(state.mu)
        count = state.count + 1
        one = torch.ones_like(count, dtype=torch.float64)
        mu, nu = decay_mean(old_mu, wide, b1), decay_squares(tree.leaves(state.nu), wide, b2)
        mu_correction = bias_correction(b1, count) if bias_correction_mu else one
        nu_correction = bias_correction(b2, count) if bias_correction_nu else one
        before, after = (nu_correction, one) if convention == "optax" else (one, nu_correction)
        nu_max = leafwise.maximum(tree.leaves(state.nu_max), leafwise.div(nu, before))
        out = leafwise.div(mu, adam_denominator(nu_max, after, mu_correction, eps, eps_root))
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        return tree.unflatten(structure, out), ScaleByAmsgradState(count, *(tree.unflatten(structure, x) for x in (stored, nu, nu_max)))

    return GradientTransform(init, update, "scale_by_amsgrad")


def scale_by_radam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
    convention: Convention = "optax",
) -> GradientTransform:
    """Adam's scaling, rectified for the variance of its first steps.

        rho_inf = 2 / (1 - b2) - 1;   rho = rho_inf - 2 t b2^t / (1 - b2^t)
        r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
        u <- r m^ / (sqrt(v^ + eps_root) + eps)  where rho >= threshold,  else  m^

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Added to the root. Not negative.
        eps_root: Added inside the root. Not negative.
        threshold: Degrees of freedom from which on the squares are trusted.
        nesterov: Look ahead as in `scale_by_adam`.
        convention: "torch" adds eps to the root before its bias correction, `sqrt(v) + eps`, as `torch.optim.RAdam` does.

    Reference:
        Liu et al., "On the variance of the adaptive learning rate and beyond", 2020, Algorithm 2. arXiv:1908.03265
    """
    check_numbers("scale_by_radam", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_radam", NOT_NEGATIVE, eps=eps, eps_root=eps_root)
    check_numbers("scale_by_radam", FINITE, threshold=threshold)
    check_convention("scale_by_radam", convention)
    rho_inf = 2.0 / (1.0 - b2) - 1.0

    def init(params: Tree) -> ScaleByAdamState:
        return ScaleByAdamState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByAdamState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByAdamState]:
        leaves, structure = tree.flatten(updates)
        wide = widen(leaves)
        count = state.count + 1
        mu, nu = decay_mean(tree.leaves(state.mu), wide, b1), decay_squares(tree.leaves(state.nu), wide, b2)
        mean = looking_ahead(mu, wide, b1, count) if nesterov else leafwise.div(mu, bias_correction(b1, count))
        correction = bias_correction(b2, count)
        rho = rho_inf - 2 * count * power(b2, count) / correction
        trusted = rho >= threshold
        safe = torch.where(trusted, rho, rho_inf)  # keeps the root real, and its derivative finite, where it is not used
        rectified = torch.sqrt((safe - 4) * (safe - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * safe))
        if convention == "torch":
            denominator = leafwise.div(leafwise.add(leafwise.sqrt(leafwise.add(nu, eps_root)), eps), correction.sqrt())
        else:
            denominator = adam_denominator(nu, correction, torch.ones_like(correction), eps, eps_root)
        adaptive = leafwise.mul(leafwise.div(mean, denominator), rectified)
        out = [torch.where(trusted, a, m) for a, m in zip(adaptive, mean, strict=True)]
        return tree.unflatten(structure, out), ScaleByAdamState(count, tree.unflatten(structure, mu), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_radam")


class ScaleByNadamState(NamedTuple):
    """State of `scale_by_nadam`."""

    count: Tensor  # 0-d int64, updates so far
    momentum_product: Tensor  # 0-d, product of the momenta so far; of torch's default dtype, as torch.optim.NAdam keeps it
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared updates


def scale_by_nadam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, *, momentum_decay: float = 4e-3, mu_dtype: torch.dtype | None = None
) -> GradientTransform:
    """Adam's scaling with Nesterov momentum whose weight follows a schedule, as in `torch.optim.NAdam`.

        mu_t = b1 (1 - 0.96^(t momentum_decay) / 2);      P_t = mu_1 ... mu_t
        u <- ((1 - mu_t) u / (1 - P_t) + mu_(t+1) m / (1 - P_(t+1))) / (sqrt(v / (1 - b2^t)) + eps)

    `scale_by_adam(nesterov=True)` is the form without the schedule, which optax calls nadam.

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Added outside the root. Not negative.
        momentum_decay: Speed of the schedule. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.

    Reference:
        Dozat, "Incorporating Nesterov momentum into Adam", 2016, Algorithm 2 and the schedule of its section on momentum.
    """
    check_numbers("scale_by_nadam", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_nadam", NOT_NEGATIVE, eps=eps, momentum_decay=momentum_decay)

    def momentum(count: Tensor) -> Tensor:
        return b1 * (1 - 0.5 * torch.exp(count.double() * (momentum_decay * math.log(0.96))))

    def init(params: Tree) -> ScaleByNadamState:
        count, product = scalar_like(params, 0, torch.int64), scalar_like(params, 1.0, torch.get_default_dtype())
        return ScaleByNadamState(count, product, zeros_of_moments(params, mu_dtype), zeros_of_squares(params))

    def update(updates: Tree, state: ScaleByNadamState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByNadamState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu = widen(leaves), tree.leaves(state.mu)
        count = state.count + 1
        now, ahead = momentum(count), momentum(count + 1)
        stored_product = state.momentum_product * now.to(state.momentum_product.dtype)
        product = stored_product.double()
        mu, nu = decay_mean(old_mu, wide, b1), decay_squares(tree.leaves(state.nu), wide, b2)
        mean = leafwise.add(leafwise.mul(wide, (1 - now) / (1 - product)), leafwise.mul(mu, ahead / (1 - product * ahead)))
        out = leafwise.div(mean, adam_denominator(nu, bias_correction(b2, count), torch.ones_like(product), eps, 0.0))
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        return tree.unflatten(structure, out), ScaleByNadamState(
            count, stored_product, tree.unflatten(structure, stored), tree.unflatten(structure, nu)
        )

    return GradientTransform(init, update, "scale_by_nadam")
