"""Schedules that repeat: warm restarts and triangles."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core.ranges import FINITE, POSITIVE, at_least, check_numbers
from ..core.schedule import Schedule, as_count
from .joining import join
from .warmup import warmup_cosine_decay


def sgdr(cosine_kwargs: Sequence[Mapping[str, float]]) -> Schedule:
    """Follow one warm-up and cosine fall after another.

    Args:
        cosine_kwargs: Arguments of `warmup_cosine_decay` for each cycle; `decay_steps` is its length.

    Reference:
        Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017. arXiv:1608.03983. As optax's
        `sgdr_schedule`.
    """
    cycles = list(cosine_kwargs)
    ends = [sum(cycle["decay_steps"] for cycle in cycles[: i + 1]) for i in range(len(cycles))]
    return join([warmup_cosine_decay(**cycle) for cycle in cycles], ends[:-1])


def cosine_restarts(init_value: float, first_cycle_steps: float, cycle_factor: float = 1.0, end_value: float = 0.0) -> Schedule:
    """Fall along half a cosine from `init_value` to `end_value`, and start again, for ever.

    Args:
        init_value: Value at the start of each cycle; finite.
        first_cycle_steps: Length of the first cycle, in counts. Positive.
        cycle_factor: Length of each cycle relative to the one before; at least 1.
        end_value: Value at the end of each cycle; finite.

    Raises:
        ValueError: If `first_cycle_steps` is not positive or `cycle_factor` is below 1.

    Reference:
        Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017, eq. 5. arXiv:1608.03983. torch's
        `CosineAnnealingWarmRestarts(T_0, T_mult, eta_min)`.
    """
    check_numbers("cosine_restarts", FINITE, init_value=init_value, end_value=end_value)
    check_numbers("cosine_restarts", POSITIVE, first_cycle_steps=first_cycle_steps)
    check_numbers("cosine_restarts", at_least(1), cycle_factor=cycle_factor)

    def schedule(count: Tensor | int) -> Tensor:
        periods = as_count(count) / first_cycle_steps
        if cycle_factor == 1:
            fraction = periods - torch.floor(periods)
        else:
            # cycle n starts at (factor^n - 1) / (factor - 1) periods; the nudge keeps that count from falling into the cycle before
            growth = math.log(cycle_factor)
            cycle = torch.floor(torch.log1p(periods * (cycle_factor - 1)) / growth + 1e-9)
            length = torch.exp(cycle * growth)
            fraction = ((periods - (length - 1) / (cycle_factor - 1)) / length).clamp(0, 1)
        return end_value + (init_value - end_value) * 0.5 * (1 + torch.cos(math.pi * fraction))

    return schedule


def cyclic(
    init_value: float,
    peak_value: float,
    rise_steps: float,
    fall_steps: float | None = None,
    mode: str = "triangular",
    gamma: float = 1.0,
) -> Schedule:
    """Rise and fall on straight lines, for ever.

    Args:
        init_value: Value between cycles; finite.
        peak_value: Value at the top of the first cycle; finite.
        rise_steps: Length of each rise, in counts. Positive.
        fall_steps: Length of each fall. Positive; as the rise by default.
        mode: Of the height: `"triangular"` keeps it, `"triangular2"` halves it with each cycle, `"exp_range"` multiplies it by
            `gamma^count`.
        gamma: Factor per count of `"exp_range"`. Positive.

    Raises:
        ValueError: If a length is not positive, `gamma` not positive, or the mode unknown.

    Reference:
        Smith, "Cyclical learning rates for training neural networks", 2017, section 3. arXiv:1506.01186. torch's `CyclicLR` without
        momentum.
    """
    check_numbers("cyclic", FINITE, init_value=init_value, peak_value=peak_value)
    check_numbers("cyclic", POSITIVE, rise_steps=rise_steps, gamma=gamma)
    if fall_steps is not None:
        check_numbers("cyclic", POSITIVE, fall_steps=fall_steps)
    down = rise_steps if fall_steps is None else fall_steps
    if mode not in ("triangular", "triangular2", "exp_range"):
        raise ValueError(f"cyclic: unknown mode {mode!r} (known: triangular, triangular2, exp_range)")
    period = rise_steps + down

    def schedule(count: Tensor | int) -> Tensor:
        count = as_count(count)
        cycle = torch.floor(count / period)
        here = count - cycle * period
        height = torch.where(here < rise_steps, here / rise_steps, (period - here) / down)
        if mode == "triangular2":
            height = height * torch.exp2(-cycle)
        elif mode == "exp_range":
            height = height * torch.exp(count * math.log(gamma))
        return init_value + (peak_value - init_value) * height

    return schedule
