"""The schedule that stays where it is."""

import torch
from torch import Tensor

from ..core.ranges import FINITE, check_numbers
from ..core.schedule import Schedule, as_count


def constant(value: float) -> Schedule:
    """Keep `value` at every count.

    An optimizer given the number itself keeps it as a state leaf, which can be changed; a constant schedule is for `join`.

    Args:
        value: At every count; finite.

    Reference:
        optax 0.2.8 `constant_schedule`.
    """
    check_numbers("constant", FINITE, value=value)

    def schedule(count: Tensor | int) -> Tensor:
        return torch.zeros_like(as_count(count)) + value

    return schedule
