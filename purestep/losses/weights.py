"""Schedules of the weight of a loss term: pure functions of the counts of updates and epochs.

Frozen and comparable, so that a loss with schedules can be written down; the value is computed in the graph. A user's own schedule is
any function `(step_count, epoch_count) -> 0-d tensor`.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.schedule import as_count
from ..errors import LossError

Count = Tensor | int


@dataclasses.dataclass(frozen=True)
class ConstantWeight:
    """The same weight always."""

    value: float

    def __post_init__(self) -> None:
        _check_finite("ConstantWeight.value", self.value)

    def __call__(self, step_count: Count, epoch_count: Count) -> Tensor:
        """The weight at these counts, 0-d float64."""
        return torch.full_like(as_count(step_count), self.value)


@dataclasses.dataclass(frozen=True)
class LinearWeight:
    """From `start` at count 0 along a line to `end` at `num_steps`, and then constant.

    Args:
        num_steps: Length of the ramp, in updates, or in epochs if `per_epoch`.
        per_epoch: Count epochs instead of updates.

    Example:
        >>> LinearWeight(0.0, 10.0, num_steps=100)(25, 0)
        tensor(2.5000, dtype=torch.float64)
    """

    start: float
    end: float
    num_steps: int
    per_epoch: bool = False

    def __post_init__(self) -> None:
        _check_ramp(self)

    def __call__(self, step_count: Count, epoch_count: Count) -> Tensor:
        """The weight at these counts, 0-d float64."""
        return _between(self, _fraction(self, step_count, epoch_count))


@dataclasses.dataclass(frozen=True)
class CosineWeight:
    """From `start` at count 0 along half a cosine to `end` at `num_steps`, and then constant.

    Args:
        num_steps: Length of the ramp, in updates, or in epochs if `per_epoch`.
        per_epoch: Count epochs instead of updates.
    """

    start: float
    end: float
    num_steps: int
    per_epoch: bool = False

    def __post_init__(self) -> None:
        _check_ramp(self)

    def __call__(self, step_count: Count, epoch_count: Count) -> Tensor:
        """The weight at these counts, 0-d float64."""
        return _between(self, 0.5 * (1 - torch.cos(math.pi * _fraction(self, step_count, epoch_count))))


@dataclasses.dataclass(frozen=True)
class PiecewiseWeight:
    """Constant between boundaries: `values[0]` before the first, `values[i + 1]` from `boundaries[i]` on.

    Args:
        boundaries: Counts, not negative and increasing.
        values: One more than boundaries.
        per_epoch: Count epochs instead of updates.

    Example:
        >>> PiecewiseWeight([10, 20], [1.0, 5.0, 0.0])(10, 0)
        tensor(5., dtype=torch.float64)
    """

    boundaries: Sequence[int]
    values: Sequence[float]
    per_epoch: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(self.boundaries))  # hashable, and no list of the user's
        object.__setattr__(self, "values", tuple(self.values))
        _check_per_epoch(self)
        for i, value in enumerate(self.values):
            _check_finite(f"PiecewiseWeight.values[{i}]", value)
        if len(self.values) != len(self.boundaries) + 1:
            raise LossError(
                f"PiecewiseWeight: {len(self.boundaries)} boundaries need {len(self.boundaries) + 1} values, got {len(self.values)}"
            )
        whole = all(_is_whole(b) and b >= 0 for b in self.boundaries)
        if not whole or any(a >= b for a, b in itertools.pairwise(self.boundaries)):
            raise LossError(f"PiecewiseWeight: boundaries must be counts of 0 or more that increase, got {self.boundaries}")

    def __call__(self, step_count: Count, epoch_count: Count) -> Tensor:
        """The weight at these counts, 0-d float64."""
        count = _count(self, step_count, epoch_count)
        value = torch.full_like(count, self.values[0])
        for boundary, later in zip(self.boundaries, self.values[1:], strict=True):
            value = torch.where(count >= boundary, torch.full_like(count, later), value)
        return value


def _count(schedule: Any, step_count: Count, epoch_count: Count) -> Tensor:
    return as_count(epoch_count if schedule.per_epoch else step_count)


def _fraction(schedule: Any, step_count: Count, epoch_count: Count) -> Tensor:
    return (_count(schedule, step_count, epoch_count) / schedule.num_steps).clamp(0, 1)


def _between(schedule: Any, fraction: Tensor) -> Tensor:
    """Exactly `start` at 0 and `end` at 1."""
    return schedule.start * (1 - fraction) + schedule.end * fraction


def _check_ramp(schedule: Any) -> None:
    name = type(schedule).__name__
    _check_finite(f"{name}.start", schedule.start)
    _check_finite(f"{name}.end", schedule.end)
    _check_per_epoch(schedule)
    if not _is_whole(schedule.num_steps) or schedule.num_steps <= 0:
        raise LossError(f"{name}.num_steps must be a whole number above 0, got {schedule.num_steps!r}")


def _check_per_epoch(schedule: Any) -> None:
    if not isinstance(schedule.per_epoch, bool):
        raise LossError(f"{type(schedule).__name__}.per_epoch must be True or False, got {schedule.per_epoch!r}")


def _check_finite(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LossError(f"{where} must be a finite number, got {value!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
