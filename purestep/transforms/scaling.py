"""Multiply the updates by a number: constant, learning rate, or schedule."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, Schedule, init_hyperparam, next_hyperparam
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from . import leafwise
from .pass_through import identity


def _scaled(updates: Tree, factor: Tensor | float) -> Tree:
    leaves, structure = tree.flatten(updates)
    return tree.unflatten(structure, leafwise.mul(leaves, factor))


def scale(step_size: float) -> GradientTransform:
    """Multiply the updates by a constant: `u <- step_size u`.

    Args:
        step_size: Factor; finite. Negative goes downhill.

    Reference:
        optax 0.2.8 `scale`.
    """
    check_numbers("scale", FINITE, step_size=step_size)
    return stateless(lambda updates, params: _scaled(updates, step_size), "scale")


class ScaleByLearningRateState(NamedTuple):
    """State of `scale_by_learning_rate`."""

    learning_rate: Hyperparam

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The learning rate of the latest update."""
        return {"lr": self.learning_rate.value}


def scale_by_learning_rate(learning_rate: ScalarOrSchedule | None, *, flip_sign: bool = True) -> GradientTransform:
    """Turn updates into steps downhill: `u <- -learning_rate u`.

    Args:
        learning_rate: A number, which becomes a leaf of the state that `set_hyperparams` can change; or a schedule of the number of updates
            so far. Finite; negative climbs. `None` leaves the updates as they are, sign included.
        flip_sign: False keeps the sign.

    Reference:
        optax 0.2.8 `scale_by_learning_rate`.
    """
    if learning_rate is None:
        return identity()
    check_schedulable("scale_by_learning_rate", FINITE, learning_rate=learning_rate)
    sign = -1.0 if flip_sign else 1.0

    def init(params: Tree) -> ScaleByLearningRateState:
        return ScaleByLearningRateState(init_hyperparam(learning_rate, params))

    def update(updates: Tree, state: ScaleByLearningRateState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByLearningRateState]:
        rate = next_hyperparam(learning_rate, state.learning_rate)
        return _scaled(updates, sign * rate.value), ScaleByLearningRateState(rate)

    return GradientTransform(init, update, "scale_by_learning_rate")


class ScaleByScheduleState(NamedTuple):
    """State of `scale_by_schedule`."""

    step_size: Hyperparam


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransform:
    """Multiply the updates by a schedule: `u <- step_size_fn(count) u`, where the first update has count 0.

    Args:
        step_size_fn: Schedule of the factor: a function of the number of updates so far.

    Reference:
        optax 0.2.8 `scale_by_schedule`.
    """
    check_schedulable("scale_by_schedule", FINITE, step_size_fn=step_size_fn)

    def init(params: Tree) -> ScaleByScheduleState:
        return ScaleByScheduleState(init_hyperparam(step_size_fn, params))

    def update(updates: Tree, state: ScaleByScheduleState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByScheduleState]:
        step_size = next_hyperparam(step_size_fn, state.step_size)
        return _scaled(updates, step_size.value), ScaleByScheduleState(step_size)

    return GradientTransform(init, update, "scale_by_schedule")
