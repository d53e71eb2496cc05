"""Optimizers that find their learning rate by estimating how far the solution is: Prodigy and D-Adaptation, both around Adam."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, POSITIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .inner_products import absolute_sum, dot
from .leafwise import Leaves
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares
from .parameters import wide_params


class ProdigyState(NamedTuple):
    """State of `prodigy`; scalars are 0-d float64."""

    count: Tensor  # 0-d int64, updates so far
    learning_rate: Hyperparam
    weight_decay: Hyperparam
    estim_lr: Tensor  # the estimate d, which never shrinks
    numerator_weighted: Tensor
    exp_avg: Tree  # running mean of d u
    exp_avg_sq: Tree  # running mean of (d u)^2
    grad_sum: Tree
    params0: Tree  # where training began

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The factor on the estimate, the estimate, and the decay."""
        return {"lr": self.learning_rate.value, "estim_lr": self.estim_lr, "weight_decay": self.weight_decay.value}


def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    beta3: float | None = None,
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    estim_lr_coef: float = 1.0,
    weight_decay: ScalarOrSchedule = 0.0,
    safeguard_warmup: bool = False,
) -> GradientTransform:
    """Run Adam at a learning rate that grows to the estimated distance `d` from the start to the solution.

    With `s = d * learning_rate * sqrt(1 - b2^t) / (1 - b1^t)`:

        r <- b3 r + (d / d0) s <u, p0 - p>;    g <- b3 g + (s / d0) d u;    d <- max(d, estim_lr_coef r / |g|_1)
        m <- b1 m + (1 - b1) d u;    v <- b2 v + (1 - b2) (d u)^2;    u <- -s (weight_decay p + m / (sqrt(v) + d eps))

    Args:
        learning_rate: Factor on the estimate: 1, or a schedule that ends low. Not negative.
        betas: Decay of the means of gradients and of squares, each in [0, 1).
        beta3: Decay of the estimate, in [0, 1); `sqrt(b2)` by default.
        eps: Added to the root, times `d`. Not negative.
        estim_lr0: Estimate at the start; small and positive.
        estim_lr_coef: Factor on later estimates. Positive.
        weight_decay: Decoupled, times the step; number or schedule. Not negative.
        safeguard_warmup: Leave `learning_rate` and the corrections out of `g`, which helps with a warm-up.

    Reference:
        Mishchenko and Defazio, "Prodigy: an expeditiously adaptive parameter-free learner", 2023, Algorithm 4. arXiv:2306.06101
    """
    _check_estimate("prodigy", learning_rate, betas, eps, estim_lr0, weight_decay)
    check_numbers("prodigy", POSITIVE, estim_lr_coef=estim_lr_coef)
    if beta3 is not None:
        check_numbers("prodigy", DECAY, beta3=beta3)
    b1, b2 = betas
    b3 = b2**0.5 if beta3 is None else beta3

    def init(params: Tree) -> ProdigyState:
        start = copy_of(params)
        scalars = (init_hyperparam(learning_rate, params), init_hyperparam(weight_decay, params), scalar_like(params, estim_lr0))
        moments = (zeros_of_moments(params), zeros_of_squares(params), zeros_of_moments(params))
        return ProdigyState(scalar_like(params, 0, torch.int64), *scalars, scalar_like(params, 0.0), *moments, start)

    def update(updates: Tree, state: ProdigyState, params: Tree = None, **extra: Any) -> tuple[Tree, ProdigyState]:
        leaves, structure = tree.flatten(updates)
        wide, p, count = widen(leaves), wide_params(params, "prodigy"), state.count + 1
        rate, decay = next_hyperparam(learning_rate, state.learning_rate), next_hyperparam(weight_decay, state.weight_decay)
        d = state.estim_lr
        step = _adam_step(d * rate.value, b1, b2, count)
        scaled = leafwise.mul(wide, d)
        exp_avg = decay_mean(tree.leaves(state.exp_avg), scaled, b1)
        exp_avg_sq = decay_squares(tree.leaves(state.exp_avg_sq), scaled, b2)
        entering = leafwise.mul(scaled, (d if safeguard_warmup else step) / estim_lr0)
        grad_sum = leafwise.add(leafwise.mul(tree.leaves(state.grad_sum), b3), entering)
        towards_start = leafwise.sub(tree.leaves(state.params0), p)
        numerator = b3 * state.numerator_weighted + d / estim_lr0 * step * dot(wide, towards_start)
        new_d = torch.maximum(d, _ratio(estim_lr_coef * numerator, absolute_sum(grad_sum)))
        ratio = leafwise.div(exp_avg, leafwise.add(leafwise.sqrt(exp_avg_sq), new_d * eps))
        out = leafwise.mul(leafwise.add(ratio, leafwise.mul(p, decay.value)), -step)
        trees = [tree.unflatten(structure, leaves) for leaves in (exp_avg, exp_avg_sq, grad_sum)]
        return tree.unflatten(structure, out), ProdigyState(count, rate, decay, new_d, numerator, *trees, state.params0)

    return GradientTransform(init, update, "prodigy")


def _adam_step(rate: Tensor, b1: float, b2: float, count: Tensor) -> Tensor:
    """Learning rate times both corrections of Adam's moments."""
    return rate * bias_correction(b2, count).sqrt() / bias_correction(b1, count)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; 0 before the first gradient that is not zero."""
    return torch.where(denominator > 0, numerator / torch.where(denominator > 0, denominator, 1.0), 0.0)


def _check_estimate(
    function: str,
    learning_rate: ScalarOrSchedule,
    betas: tuple[float, float],
    eps: float,
    estim_lr0: float,
    weight_decay: ScalarOrSchedule,
) -> None:
    """The checks that both optimizers share."""
    check_schedulable(function, NOT_NEGATIVE, learning_rate=learning_rate, weight_decay=weight_decay)
    for beta in betas:
        check_numbers(function, DECAY, betas=beta)
    check_numbers(function, NOT_NEGATIVE, eps=eps)
    check_numbers(function, POSITIVE, estim_lr0=estim_lr0)


class DadaptAdamwState(NamedTuple):
    """State of `dadapt_adamw`; scalars are 0-d float64."""

    count: Tensor  # 0-d int64, updates so far
    learning_rate: Hyperparam
    weight_decay: Hyperparam
    estim_lr: Tensor  # the estimate d, which never shrinks
    numerator_weighted: Tensor
    exp_avg: Tree  # running mean of steps
    exp_avg_sq: Tree  # running mean of squares
    grad_sum: Tree

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The factor on the estimate, the estimate, and the decay."""
        return {"lr": self.learning_rate.value, "estim_lr": self.estim_lr, "weight_decay": self.weight_decay.value}


def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
) -> GradientTransform:
    """Run AdamW at a learning rate that grows to a lower bound `d` of the distance from the start to the solution.

    With `s = d * learning_rate * sqrt(1 - b2^t) / (1 - b1^t)` and `b = sqrt(b2)`:

        r <- b r + (1 - b) s <u, g / (sqrt(v) + eps)>;    m <- b1 m + (1 - b1) s u;    v <- b2 v + (1 - b2) u^2
        g <- b g + (1 - b) s u;    d <- max(d, r / ((1 - b) |g|_1));    u <- -weight_decay s p - m / (sqrt(v) + eps)

    Args:
        learning_rate: Factor on the estimate: 1, or a schedule that ends low. Not negative.
        betas: Decay of the means of gradients and of squares, each in [0, 1).
        eps: Added to the root, in the units of the gradients. Not negative.
        estim_lr0: Estimate at the start; small and positive.
        weight_decay: Decoupled, times the step; number or schedule. Not negative.

    Reference:
        Defazio and Mishchenko, "Learning-rate-free learning by D-Adaptation", 2023, Algorithm 5. arXiv:2301.07733
    """
    _check_estimate("dadapt_adamw", learning_rate, betas, eps, estim_lr0, weight_decay)
    b1, b2 = betas
    root = b2**0.5

    def init(params: Tree) -> DadaptAdamwState:
        scalars = (init_hyperparam(learning_rate, params), init_hyperparam(weight_decay, params), scalar_like(params, estim_lr0))
        moments = (zeros_of_moments(params), zeros_of_squares(params), zeros_of_moments(params))
        return DadaptAdamwState(scalar_like(params, 0, torch.int64), *scalars, scalar_like(params, 0.0), *moments)

    def update(updates: Tree, state: DadaptAdamwState, params: Tree = None, **extra: Any) -> tuple[Tree, DadaptAdamwState]:
        leaves, structure = tree.flatten(updates)
        wide, p, count = widen(leaves), wide_params(params, "dadapt_adamw"), state.count + 1
        rate, decay = next_hyperparam(learning_rate, state.learning_rate), next_hyperparam(weight_decay, state.weight_decay)
        step = _adam_step(state.estim_lr * rate.value, b1, b2, count)
        old_sum, old_sq = tree.leaves(state.grad_sum), tree.leaves(state.exp_avg_sq)
        projection = dot(wide, _divided(old_sum, old_sq, eps))
        steps = leafwise.mul(wide, step)
        exp_avg, exp_avg_sq = decay_mean(tree.leaves(state.exp_avg), steps, b1), decay_squares(old_sq, wide, b2)
        grad_sum = decay_mean(old_sum, steps, root)
        numerator = root * state.numerator_weighted + (1 - root) * step * projection
        d = torch.maximum(state.estim_lr, _ratio(numerator, (1 - root) * absolute_sum(grad_sum)))
        decayed = leafwise.mul(p, -decay.value * step)
        out = leafwise.sub(decayed, _divided(exp_avg, exp_avg_sq, eps))
        trees = [tree.unflatten(structure, leaves) for leaves in (exp_avg, exp_avg_sq, grad_sum)]
        return tree.unflatten(structure, out), DadaptAdamwState(count, rate, decay, d, numerator, *trees)

    return GradientTransform(init, update, "dadapt_adamw")


def _divided(xs: Leaves, squares: Leaves, eps: float) -> Leaves:
    return leafwise.div(xs, leafwise.add(leafwise.sqrt(squares), eps))
