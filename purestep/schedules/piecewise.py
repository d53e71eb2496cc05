"""Schedules given by a few points: steps between them, or lines, or half cosines."""

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core.ranges import FINITE, NOT_NEGATIVE, check_numbers
from ..core.schedule import Schedule, as_count


def piecewise_constant(init_value: float, boundaries_and_scales: Mapping[int, float] | None = None) -> Schedule:
    """Multiply by a scale from each boundary on: `{30: 0.1, 60: 0.1}` is 1, 0.1, 0.01 times `init_value`.

    Args:
        init_value: Value before the first boundary; finite.
        boundaries_and_scales: `{count: factor}`; the count itself has the new value already. Factors are not negative.

    Raises:
        ValueError: If a factor is negative.

    Reference:
        optax 0.2.8 `piecewise_constant_schedule`; torch's `MultiStepLR(milestones, gamma)` is `{milestone: gamma, ...}`.
    """
    check_numbers("piecewise_constant", FINITE, init_value=init_value)
    scales = sorted(_checked("piecewise_constant", boundaries_and_scales).items())

    def schedule(count: Tensor | int) -> Tensor:
        count = as_count(count)
        value = torch.zeros_like(count) + init_value
        for boundary, scale in scales:
            value = torch.where(count >= boundary, value * scale, value)
        return value

    return schedule


def piecewise_interpolate(interpolate_type: str, init_value: float, boundaries_and_scales: Mapping[int, float] | None = None) -> Schedule:
    """Go from `init_value` at 0 through the value at each boundary, and stay at the last.

    Args:
        interpolate_type: `"linear"` or `"cosine"` between boundaries.
        init_value: Value at count 0; finite.
        boundaries_and_scales: `{count: factor}`; the value there is the value at the boundary before, times the factor. Factors are not
            negative.

    Raises:
        ValueError: If the type is unknown or a factor negative.

    Reference:
        optax 0.2.8 `piecewise_interpolate_schedule`.
    """
    check_numbers("piecewise_interpolate", FINITE, init_value=init_value)
    points, value = [(0, init_value)], init_value
    for boundary, scale in sorted(_checked("piecewise_interpolate", boundaries_and_scales).items()):
        value = value * scale
        points.append((boundary, value))
    return through(points, interpolate_type)


def _checked(name: str, scales: Mapping[int, float] | None) -> Mapping[int, float]:
    for boundary, factor in (scales or {}).items():
        check_numbers(name, FINITE, **{"boundary of boundaries_and_scales": boundary})
        check_numbers(name, NOT_NEGATIVE, **{f"boundaries_and_scales[{boundary}]": factor})
    return scales or {}


def through(points: Sequence[tuple[float, float]], interpolate_type: str) -> Schedule:
    """Go through points `(count, value)` in order, by lines or half cosines, and stay at the last."""
    if interpolate_type not in ("linear", "cosine"):
        raise ValueError(f"unknown interpolate_type {interpolate_type!r} (known: cosine, linear)")

    def schedule(count: Tensor | int) -> Tensor:
        count = as_count(count)
        value = torch.zeros_like(count) + points[-1][1]
        for (begin, start), (end, stop) in reversed(list(itertools.pairwise(points))):
            if end == begin:
                continue
            fraction = ((count - begin) / (end - begin)).clamp(0, 1)
            if interpolate_type == "cosine":
                fraction = 0.5 * (1 - torch.cos(math.pi * fraction))
            value = torch.where(count < end, start + (stop - start) * fraction, value)
        return value

    return schedule
