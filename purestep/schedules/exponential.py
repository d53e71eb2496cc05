"""The schedule that shrinks, or grows, by a constant factor per period."""

import math

import torch
from torch import Tensor

from ..core.ranges import FINITE, NOT_NEGATIVE, check_numbers
from ..core.schedule import Schedule, as_count
from .flat import constant


def exponential_decay(
    init_value: float,
    transition_steps: float,
    decay_rate: float,
    transition_begin: float = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """Multiply by `decay_rate` once per `transition_steps`, smoothly or in stairs.

    `init * decay_rate^p` with `p = max(count - transition_begin, 0) / transition_steps`, rounded down for stairs.

    Args:
        init_value: Value at count 0; finite.
        transition_steps: Counts per factor; finite. Not positive: `init_value` for ever, as in optax.
        decay_rate: Factor. Not negative; above 1 it grows. 0: `init_value` for ever, as in optax.
        transition_begin: Count at which it starts; negative is 0.
        staircase: Change only when a whole period is over.
        end_value: Bound: from below for `decay_rate < 1`, else from above.

    Raises:
        ValueError: If `decay_rate` is negative.

    Reference:
        optax 0.2.8 `exponential_decay`. torch's `ExponentialLR(gamma)` has `transition_steps=1, decay_rate=gamma`; `StepLR(step_size,
        gamma)` has `transition_steps=step_size, decay_rate=gamma, staircase=True`.
    """
    check_numbers("exponential_decay", FINITE, init_value=init_value, transition_steps=transition_steps, transition_begin=transition_begin)
    check_numbers("exponential_decay", NOT_NEGATIVE, decay_rate=decay_rate)
    if end_value is not None:
        check_numbers("exponential_decay", FINITE, end_value=end_value)
    if not transition_steps > 0 or decay_rate == 0:
        return constant(init_value)
    begin, log_rate = max(transition_begin, 0), math.log(decay_rate)

    def schedule(count: Tensor | int) -> Tensor:
        periods = (as_count(count) - begin).clamp(min=0) / transition_steps
        value = init_value * torch.exp(log_rate * (torch.floor(periods) if staircase else periods))
        if end_value is None:
            return value
        return value.clamp(min=end_value) if decay_rate < 1 else value.clamp(max=end_value)

    return schedule
