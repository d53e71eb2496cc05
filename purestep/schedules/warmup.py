"""Schedules that begin with a linear rise from `init_value` to `peak_value`."""

import torch
from torch import Tensor

from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE, check_numbers
from ..core.schedule import Schedule, as_count
from .cosine import cosine_decay
from .exponential import exponential_decay
from .flat import constant
from .joining import join
from .powers import linear, polynomial


def _rise(init_value: float, peak_value: float, warmup_steps: float, then: Schedule) -> Schedule:
    return join([linear(init_value, peak_value, warmup_steps), then], [warmup_steps])


def _steps_after_warmup(name: str, warmup_steps: float, decay_steps: float) -> float:
    check_numbers(name, NOT_NEGATIVE, warmup_steps=warmup_steps)
    check_numbers(name, POSITIVE, decay_steps=decay_steps)
    if decay_steps < warmup_steps:
        raise ValueError(
            f"{name}: decay_steps counts from 0 and includes the warm-up, so it must be at least warmup_steps = {warmup_steps}, "
            f"got {decay_steps}"
        )
    return decay_steps - warmup_steps


def warmup_constant(init_value: float, peak_value: float, warmup_steps: float) -> Schedule:
    """Rise to `peak_value` and stay.

    Args:
        init_value: Value at count 0; finite.
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.

    Reference:
        optax 0.2.8 `warmup_constant_schedule`, except that without warm-up steps this is `peak_value` (there: `init_value` for ever).
    """
    check_numbers("warmup_constant", FINITE, init_value=init_value, peak_value=peak_value)
    check_numbers("warmup_constant", NOT_NEGATIVE, warmup_steps=warmup_steps)
    return _rise(init_value, peak_value, warmup_steps, constant(peak_value))


def warmup_cosine_decay(
    init_value: float, peak_value: float, warmup_steps: float, decay_steps: float, end_value: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """Rise to `peak_value`, then fall to `end_value` along half a cosine.

    Args:
        init_value: Value at count 0; finite.
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.
        decay_steps: Count at which the end is reached. Positive; it counts from 0 and includes the warm-up.
        end_value: Value at the end and after it; finite.
        exponent: Of the cosine, see `cosine_decay`. Positive.

    Raises:
        ValueError: If `decay_steps` is 0, where `end_value` would hold from the first update on, or below `warmup_steps`.

    Reference:
        optax 0.2.8 `warmup_cosine_decay_schedule`, which refuses `decay_steps == warmup_steps`; here the warm-up is then followed by
        `end_value`.
    """
    check_numbers("warmup_cosine_decay", FINITE, init_value=init_value, peak_value=peak_value, end_value=end_value)
    check_numbers("warmup_cosine_decay", POSITIVE, exponent=exponent)
    falling = _steps_after_warmup("warmup_cosine_decay", warmup_steps, decay_steps)
    if falling == 0:
        return _rise(init_value, peak_value, warmup_steps, constant(end_value))
    alpha = end_value / peak_value if peak_value else 0.0
    return _rise(init_value, peak_value, warmup_steps, cosine_decay(peak_value, falling, alpha, exponent))


def warmup_exponential_decay(
    init_value: float,
    peak_value: float,
    warmup_steps: float,
    transition_steps: float,
    decay_rate: float,
    transition_begin: float = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """Rise to `peak_value`, then decay by a constant factor per period; see `exponential_decay`, whose count starts after the warm-up.

    Args:
        init_value: Value at count 0; finite.
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.
        transition_steps: Counts per factor. Not positive: `peak_value` for ever, as in optax.
        decay_rate: Factor. Not negative; above 1 it grows.
        transition_begin: Count after the warm-up at which the decay starts; negative is 0.
        staircase: Change only when a whole period is over.
        end_value: Bound: from below for `decay_rate < 1`, else from above. Finite.

    Reference:
        optax 0.2.8 `warmup_exponential_decay_schedule`.
    """
    check_numbers("warmup_exponential_decay", FINITE, init_value=init_value, peak_value=peak_value, transition_steps=transition_steps)
    check_numbers("warmup_exponential_decay", NOT_NEGATIVE, warmup_steps=warmup_steps, decay_rate=decay_rate)
    decay = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return _rise(init_value, peak_value, warmup_steps, decay)


def warmup_polynomial_decay(
    init_value: float, peak_value: float, warmup_steps: float, decay_steps: float, end_value: float = 0.0, power: float = 1.0
) -> Schedule:
    """Rise to `peak_value`, then fall to `end_value` as a power of the remaining fraction.

    Args:
        init_value: Value at count 0; finite.
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.
        decay_steps: Count at which the end is reached. Positive; it counts from 0 and includes the warm-up.
        end_value: Value at the end and after it; finite.
        power: 1 falls on a straight line. Positive.

    Raises:
        ValueError: If `decay_steps` is 0, where `end_value` would hold from the first update on, or below `warmup_steps`.

    Reference:
        `polynomial` after a warm-up: optax 0.2.8 `polynomial_schedule`. BERT's schedule has the power 1: Devlin et al., "BERT", 2019,
        appendix A.2. arXiv:1810.04805
    """
    check_numbers("warmup_polynomial_decay", FINITE, init_value=init_value, peak_value=peak_value, end_value=end_value)
    check_numbers("warmup_polynomial_decay", POSITIVE, power=power)
    falling = _steps_after_warmup("warmup_polynomial_decay", warmup_steps, decay_steps)
    then = polynomial(peak_value, end_value, power, falling) if falling else constant(end_value)
    return _rise(init_value, peak_value, warmup_steps, then)


def warmup_stable_decay(
    init_value: float,
    peak_value: float,
    warmup_steps: float,
    stable_steps: float,
    decay_steps: float,
    end_value: float = 0.0,
    shape: str = "linear",
) -> Schedule:
    """Rise to `peak_value`, hold it, then fall to `end_value`: a trapezoid.

    Args:
        init_value: Value at count 0; finite.
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.
        stable_steps: Length of the plateau, in counts. Not negative.
        decay_steps: Length of the fall alone (unlike `warmup_cosine_decay`, where it includes what comes before). Not negative; 0 drops to
            the end.
        end_value: Value at the end and after it; finite.
        shape: Of the fall: `"linear"`, `"cosine"`, `"sqrt"` (`1 - sqrt(t)`) or `"exponential"` (needs `end_value > 0`).

    Raises:
        ValueError: If a length is negative or all are 0, or the shape is unknown or does not fit the end value.

    Reference:
        Hu et al., "MiniCPM", 2024, eq. 1. arXiv:2404.06395. Hagele et al., "Scaling laws and compute-optimal training beyond fixed
        training durations", 2024, eq. 1 and 2 (linear and 1-sqrt). arXiv:2405.18392
    """
    check_numbers("warmup_stable_decay", FINITE, init_value=init_value, peak_value=peak_value, end_value=end_value)
    check_numbers("warmup_stable_decay", NOT_NEGATIVE, warmup_steps=warmup_steps, stable_steps=stable_steps, decay_steps=decay_steps)
    if warmup_steps == stable_steps == decay_steps == 0:
        raise ValueError("warmup_stable_decay: one of warmup_steps, stable_steps and decay_steps must be positive, got 0 for each")
    falling = _fall(peak_value, end_value, decay_steps, shape)
    parts = [linear(init_value, peak_value, warmup_steps), constant(peak_value), falling]
    return join(parts, [warmup_steps, warmup_steps + stable_steps])


def _fall(peak_value: float, end_value: float, decay_steps: float, shape: str) -> Schedule:
    known = ("linear", "cosine", "sqrt", "exponential")
    if shape not in known:
        raise ValueError(f"warmup_stable_decay: unknown shape {shape!r} (known: {', '.join(known)})")
    if shape == "exponential" and not (end_value > 0 and peak_value > 0):
        raise ValueError(f"warmup_stable_decay: an exponential fall needs positive values, got {peak_value} to {end_value}")
    if decay_steps == 0:
        return constant(end_value)
    if shape == "linear":
        return linear(peak_value, end_value, decay_steps)
    if shape == "exponential":
        fall = exponential_decay(peak_value, decay_steps, end_value / peak_value)
    elif shape == "cosine":
        fall = cosine_decay(peak_value, decay_steps, end_value / peak_value if peak_value else 0.0)
    else:

        def fall(count: Tensor | int) -> Tensor:
            return peak_value + (end_value - peak_value) * torch.sqrt(as_count(count).clamp(max=decay_steps) / decay_steps)

    return join([fall, constant(end_value)], [decay_steps])
