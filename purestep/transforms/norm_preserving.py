"""Fromage's step: add an update of relative size, and shrink so that norms do not grow."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen
from .parameters import wide_params


class StepAndShrinkState(NamedTuple):
    """State of `step_and_shrink`."""

    learning_rate: Hyperparam

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The learning rate of the latest update."""
        return {"lr": self.learning_rate.value}


def step_and_shrink(learning_rate: ScalarOrSchedule) -> GradientTransform:
    """Step downhill and divide the result by `sqrt(1 + learning_rate^2)`: `p <- (p - learning_rate u) / sqrt(1 + learning_rate^2)`.

    Args:
        learning_rate: Number or schedule; relative to the norm of each leaf if the updates have that norm. Finite.

    Reference:
        Bernstein et al., "On the distance between two neural networks and the stability of learning", 2020, Algorithm 1.
        arXiv:2002.03432
    """
    check_schedulable("step_and_shrink", FINITE, learning_rate=learning_rate)

    def init(params: Tree) -> StepAndShrinkState:
        return StepAndShrinkState(init_hyperparam(learning_rate, params))

    def update(updates: Tree, state: StepAndShrinkState, params: Tree = None, **extra: Any) -> tuple[Tree, StepAndShrinkState]:
        leaves, structure = tree.flatten(updates)
        rate = next_hyperparam(learning_rate, state.learning_rate)
        shrink = torch.rsqrt(1 + rate.value**2)
        step = leafwise.mul(widen(leaves), -rate.value * shrink)
        out = leafwise.add(step, leafwise.mul(wide_params(params, "step_and_shrink"), shrink - 1))
        return tree.unflatten(structure, out), StepAndShrinkState(rate)

    return GradientTransform(init, update, "step_and_shrink")
