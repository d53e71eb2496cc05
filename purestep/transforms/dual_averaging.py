"""MADGRAD: adaptive steps from the start of training along the sum of all gradients, averaged with momentum."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .moments import magnitude_squared, widen, zeros_of_moments, zeros_of_squares
from .parameters import wide_params


class MadgradState(NamedTuple):
    """State of `scale_by_madgrad`."""

    count: Tensor  # 0-d int64, updates so far
    learning_rate: Hyperparam
    grad_sum_sq: Tree  # weighted sum of squares
    s: Tree  # weighted sum of gradients
    x0: Tree  # where training began

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The learning rate of the latest update."""
        return {"lr": self.learning_rate.value}


def scale_by_madgrad(learning_rate: ScalarOrSchedule, momentum: float = 0.9, eps: float = 1e-6) -> GradientTransform:
    """Step towards the dual average of all gradients, weighed by `l = (learning_rate + eps) sqrt(count + 1)`.

        s <- s + l u;    v <- v + l u^2;    z = p0 - s / (v^(1/3) + eps);    p <- momentum p + (1 - momentum) z

    Args:
        learning_rate: Number or schedule; already contained in the updates. Not negative.
        momentum: Share of the old parameters, in [0, 1).
        eps: Added to the learning rate and to the cube root. Not negative.

    Reference:
        Defazio and Jelassi, "Adaptivity without compromise: a momentumized, adaptive, dual averaged gradient method for stochastic
        optimization", 2021, Algorithm 1. arXiv:2101.11075
    """
    check_schedulable("scale_by_madgrad", NOT_NEGATIVE, learning_rate=learning_rate)
    check_numbers("scale_by_madgrad", DECAY, momentum=momentum)
    check_numbers("scale_by_madgrad", NOT_NEGATIVE, eps=eps)

    def init(params: Tree) -> MadgradState:
        scalars = (scalar_like(params, 0, torch.int64), init_hyperparam(learning_rate, params))
        return MadgradState(*scalars, zeros_of_squares(params), zeros_of_moments(params), copy_of(params))

    def update(updates: Tree, state: MadgradState, params: Tree = None, **extra: Any) -> tuple[Tree, MadgradState]:
        leaves, structure = tree.flatten(updates)
        u, p, count = widen(leaves), wide_params(params, "scale_by_madgrad"), state.count + 1
        rate = next_hyperparam(learning_rate, state.learning_rate)
        weight = (rate.value + eps) * torch.sqrt(count.double())
        squares = leafwise.add(tree.leaves(state.grad_sum_sq), leafwise.mul(magnitude_squared(u), weight))
        s = leafwise.add(tree.leaves(state.s), leafwise.mul(u, weight))
        sigma = [v ** (1 / 3) + eps for v in squares]
        z = leafwise.sub(tree.leaves(state.x0), leafwise.div(s, sigma))
        out = leafwise.mul(leafwise.sub(z, p), 1 - momentum)
        new = MadgradState(count, rate, tree.unflatten(structure, squares), tree.unflatten(structure, s), state.x0)
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_madgrad")
