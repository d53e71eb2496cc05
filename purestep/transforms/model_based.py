"""MoMo: step sizes from a model of the loss that averages past losses and gradients, for momentum SGD and for Adam."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .inner_products import dot
from .moments import bias_correction, decay_mean, decay_squares, widen, zeros_of_moments, zeros_of_squares
from .parameters import wide_params


class MomoState(NamedTuple):
    """State of `momo` and, with squares, of `momo_adam`; scalars are 0-d float64."""

    count: Tensor  # 0-d int64, updates so far
    learning_rate: Hyperparam
    weight_decay: Hyperparam
    barf: Tensor  # running mean of losses
    gamma: Tensor  # running mean of <gradient, parameters>
    lb: Tensor  # lower bound of the loss
    step_size: Tensor  # of the latest update
    exp_avg: Tree  # running mean of gradients
    exp_avg_sq: Tree | None  # running mean of their squares; `momo_adam` only

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The largest allowed step size, the one taken, and the lower bound."""
        return {"lr": self.learning_rate.value, "step_size": self.step_size, "lower_bound": self.lb}


def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: float = 0.9,
    lower_bound: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransform:
    """Take the step to where a model of the loss reaches its lower bound, at most `learning_rate` long.

    With `d` the mean of gradients, `f` of losses, `c` of `<u, p>` (all begin at the first value), `w = 1 + learning_rate weight_decay`:

        s = min(learning_rate, max(w (f - bound - c) + <d, p>, 0) / |d|^2);    u <- -(1 - 1/w) p - s d

    Needs `value`, the loss of the step.

    Args:
        learning_rate: Largest step size; number or schedule. Not negative.
        beta: Decay of the means, in [0, 1).
        lower_bound: Of the loss, in its units; finite.
        weight_decay: Decoupled, times the learning rate; number or schedule. Not negative.
        adapt_lower_bound: Raise the bound as the model learns of a higher one.

    Reference:
        Schaipp et al., "MoMo: momentum models for adaptive learning rates", 2023, Algorithm 1 (and 4 for the bound).
        arXiv:2305.07583
    """
    check_schedulable("momo", NOT_NEGATIVE, learning_rate=learning_rate, weight_decay=weight_decay)
    check_numbers("momo", DECAY, beta=beta)
    check_numbers("momo", FINITE, lower_bound=lower_bound)

    def update(updates: Tree, state: MomoState, params: Tree = None, *, value: Tensor | float, **extra: Any) -> tuple[Tree, MomoState]:
        leaves, structure = tree.flatten(updates)
        wide, p = widen(leaves), wide_params(params, "momo")
        decay = (state.count > 0).double() * beta
        exp_avg = decay_mean(tree.leaves(state.exp_avg), wide, decay)
        model = _Model.of(state, learning_rate, weight_decay, decay, value, dot(wide, p), dot(exp_avg, p), dot(exp_avg, exp_avg))
        step, bound = model.step(torch.ones_like(state.barf), lower_bound if adapt_lower_bound else None)
        out = leafwise.sub(leafwise.mul(p, model.shrink), leafwise.mul(exp_avg, step))
        return tree.unflatten(structure, out), model.state(state.count + 1, step, bound, tree.unflatten(structure, exp_avg), None)

    return GradientTransform(_init(learning_rate, weight_decay, lower_bound, lambda params: None), update, "momo", frozenset({"value"}))


def momo_adam(
    learning_rate: ScalarOrSchedule = 0.01,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    lower_bound: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransform:
    """Take MoMo's step in Adam's geometry: lengths of gradients are measured by `D = eps + sqrt(v^)`.

    Needs `value`, the loss of the step. As `momo`, with `<d, d / D>` for `|d|^2`, `d / D` for the direction, means that begin at 0,
    and both `learning_rate` and the bound corrected by `1 - b1^t`.

    Args:
        learning_rate: Largest step size; number or schedule. Not negative.
        b1: Decay of the means of gradients and losses, in [0, 1).
        b2: Decay of the squares, in [0, 1).
        eps: Added to the root, in the units of the gradients. Not negative.
        lower_bound: Of the loss, in its units; finite.
        weight_decay: Decoupled, times the learning rate; number or schedule. Not negative.
        adapt_lower_bound: Raise the bound as the model learns of a higher one.

    Reference:
        Schaipp et al., "MoMo: momentum models for adaptive learning rates", 2023, Algorithm 2. arXiv:2305.07583
    """
    check_schedulable("momo_adam", NOT_NEGATIVE, learning_rate=learning_rate, weight_decay=weight_decay)
    check_numbers("momo_adam", DECAY, b1=b1, b2=b2)
    check_numbers("momo_adam", NOT_NEGATIVE, eps=eps)
    check_numbers("momo_adam", FINITE, lower_bound=lower_bound)

    def update(updates: Tree, state: MomoState, params: Tree = None, *, value: Tensor | float, **extra: Any) -> tuple[Tree, MomoState]:
        leaves, structure = tree.flatten(updates)
        wide, p, count = widen(leaves), wide_params(params, "momo_adam"), state.count + 1
        exp_avg = decay_mean(tree.leaves(state.exp_avg), wide, b1)
        exp_avg_sq = decay_squares(tree.leaves(state.exp_avg_sq), wide, b2)
        metric = leafwise.add(leafwise.sqrt(leafwise.div(exp_avg_sq, bias_correction(b2, count))), eps)
        direction = leafwise.div(exp_avg, metric)
        model = _Model.of(state, learning_rate, weight_decay, b1, value, dot(wide, p), dot(exp_avg, p), dot(exp_avg, direction))
        step, bound = model.step(bias_correction(b1, count), lower_bound if adapt_lower_bound else None)
        out = leafwise.sub(leafwise.mul(p, model.shrink), leafwise.mul(direction, step))
        means = [tree.unflatten(structure, leaves) for leaves in (exp_avg, exp_avg_sq)]
        return tree.unflatten(structure, out), model.state(count, step, bound, *means)

    return GradientTransform(_init(learning_rate, weight_decay, lower_bound, zeros_of_squares), update, "momo_adam", frozenset({"value"}))


def _init(learning_rate: ScalarOrSchedule, weight_decay: ScalarOrSchedule, lower_bound: float, squares: Any) -> Any:
    def init(params: Tree) -> MomoState:
        rates = (init_hyperparam(learning_rate, params), init_hyperparam(weight_decay, params))
        scalars = [scalar_like(params, value) for value in (0.0, 0.0, lower_bound, 0.0)]
        return MomoState(scalar_like(params, 0, torch.int64), *rates, *scalars, zeros_of_moments(params), squares(params))

    return init


class _Model(NamedTuple):
    """The linear model of the loss that both forms minimize."""

    rate: Hyperparam
    decay: Hyperparam
    barf: Tensor
    gamma: Tensor
    bound: Tensor
    product: Tensor  # <mean gradient, parameters>
    norm: Tensor  # squared length of the mean gradient

    @staticmethod
    def of(
        state: MomoState,
        learning_rate: ScalarOrSchedule,
        weight_decay: ScalarOrSchedule,
        mean_decay: Tensor | float,
        value: Tensor | float,
        slope: Tensor,
        product: Tensor,
        norm: Tensor,
    ) -> "_Model":
        barf = mean_decay * state.barf + (1 - mean_decay) * (torch.zeros_like(state.barf) + value)
        gamma = mean_decay * state.gamma + (1 - mean_decay) * slope
        rate, decay = next_hyperparam(learning_rate, state.learning_rate), next_hyperparam(weight_decay, state.weight_decay)
        return _Model(rate, decay, barf, gamma, state.lb, product, norm)

    @property
    def growth(self) -> Tensor:
        return 1 + self.rate.value * self.decay.value

    @property
    def shrink(self) -> Tensor:
        """What decay adds of the parameters."""
        return -self.rate.value * self.decay.value / self.growth

    def step(self, correction: Tensor, floor: float | None) -> tuple[Tensor, Tensor]:
        """Step size and the bound for the next update; `floor` None keeps the bound."""
        bound, growth = self.bound, self.growth
        if floor is not None:
            cap = growth * (self.barf - self.gamma) + self.product
            too_high = cap < growth * correction * bound
            bound = torch.where(too_high, (cap / (2 * correction * growth)).clamp(min=floor), bound)
        wanted = (growth * (self.barf - correction * bound - self.gamma) + self.product).clamp(min=0.0)
        still = self.norm <= torch.finfo(torch.float64).eps
        length = torch.where(still, 0.0, wanted / torch.where(still, 1.0, self.norm))
        step = torch.minimum(self.rate.value / correction, length)
        if floor is None:
            return step, self.bound.clone()
        reached = (self.barf + self.product - self.gamma - 0.5 * step * self.norm) / correction
        return step, reached.clamp(min=floor)

    def state(self, count: Tensor, step: Tensor, bound: Tensor, exp_avg: Tree, exp_avg_sq: Tree | None) -> MomoState:
        return MomoState(count, self.rate, self.decay, self.barf, self.gamma, bound, step, exp_avg, exp_avg_sq)
