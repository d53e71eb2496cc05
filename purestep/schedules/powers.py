"""Schedules that go from one value to another along a power of the remaining fraction; linear ones among them."""

from torch import Tensor

from ..core.ranges import FINITE, POSITIVE, check_numbers
from ..core.schedule import Schedule, as_count
from .flat import constant


def polynomial(init_value: float, end_value: float, power: float, transition_steps: float, transition_begin: float = 0) -> Schedule:
    """Go from `init_value` to `end_value` as a power of the fraction that remains.

    `end + (init - end) * (1 - t)^power` with `t = clip((count - transition_begin) / transition_steps, 0, 1)`.

    Args:
        init_value: Value at count 0; finite.
        end_value: Value at the end and after it; finite.
        power: Positive; 1 is a straight line, 2 brakes towards the end.
        transition_steps: Length of the transition, in counts. Not positive: `init_value` for ever, as in optax.
        transition_begin: Count at which it starts; negative is 0.

    Reference:
        optax 0.2.8 `polynomial_schedule`. torch's `PolynomialLR` is this with `end_value=0`.
    """
    check_numbers("polynomial", POSITIVE, power=power)
    return _transition("polynomial", init_value, end_value, power, transition_steps, transition_begin)


def linear(init_value: float, end_value: float, transition_steps: float, transition_begin: float = 0) -> Schedule:
    """Go from `init_value` to `end_value` on a straight line.

    Args:
        init_value: Value at count 0; finite.
        end_value: Value at the end and after it; finite.
        transition_steps: Length of the transition, in counts. Not positive: `init_value` for ever, as in optax.
        transition_begin: Count at which it starts; negative is 0.

    Reference:
        optax 0.2.8 `linear_schedule`. torch's `LinearLR(start_factor, end_factor, total_iters)` times the rate is this.
    """
    return _transition("linear", init_value, end_value, 1, transition_steps, transition_begin)


def _transition(function: str, init_value: float, end_value: float, power: float, steps: float, begin: float) -> Schedule:
    check_numbers(function, FINITE, init_value=init_value, end_value=end_value, transition_steps=steps, transition_begin=begin)
    if not steps > 0:
        return constant(init_value)
    begin = max(begin, 0)

    def schedule(count: Tensor | int) -> Tensor:
        remaining = 1 - (as_count(count) - begin).clamp(0, steps) / steps
        return (init_value - end_value) * remaining**power + end_value

    return schedule
