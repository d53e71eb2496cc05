"""One schedule after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.ranges import FINITE, check_numbers
from ..core.schedule import Schedule, as_count


def join(schedules: Sequence[Schedule], boundaries: Sequence[float]) -> Schedule:
    """Follow each schedule up to its boundary, then the next one from its own count 0.

    Args:
        schedules: In order.
        boundaries: Counts at which the second, third, ... takes over; not decreasing.

    Raises:
        ValueError: If there is not one boundary between each two schedules, or they decrease.

    Reference:
        optax 0.2.8 `join_schedules`; torch's `SequentialLR` has the same arguments.
    """
    if not schedules or len(boundaries) != len(schedules) - 1:
        raise ValueError(f"join: {len(schedules)} schedules need {max(len(schedules) - 1, 0)} boundaries, got {len(boundaries)}")
    check_numbers("join", FINITE, **{f"boundaries[{i}]": boundary for i, boundary in enumerate(boundaries)})
    if list(boundaries) != sorted(boundaries):
        raise ValueError(f"join: boundaries must not decrease, got {list(boundaries)}")

    def schedule(count: Tensor | int) -> Tensor:
        count = as_count(count)
        value = schedules[0](count)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            # a schedule is never asked about the time before its own start, so it cannot give a NaN that `where` would differentiate
            value = torch.where(count < boundary, value, later((count - boundary).clamp(min=0)))
        return value

    return schedule
