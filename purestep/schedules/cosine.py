"""The schedule that falls along half a cosine."""

import math

import torch
from torch import Tensor

from ..core.ranges import FINITE, POSITIVE, check_numbers
from ..core.schedule import Schedule, as_count


def cosine_decay(init_value: float, decay_steps: float, alpha: float = 0.0, exponent: float = 1.0) -> Schedule:
    """Fall from `init_value` to `alpha * init_value` along half a cosine, and stay there.

    `init * ((1 - alpha) * (0.5 * (1 + cos(pi * t)))^exponent + alpha)` with `t = min(count / decay_steps, 1)`.

    Args:
        init_value: Value at count 0; finite.
        decay_steps: Count at which the end is reached. Positive.
        alpha: What remains at the end, as a fraction of `init_value`; finite.
        exponent: Of the cosine. Positive.

    Raises:
        ValueError: If `decay_steps` or `exponent` is not positive.

    Reference:
        Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017, eq. 5. arXiv:1608.03983. As optax's
        `cosine_decay_schedule`; torch's `CosineAnnealingLR` rises again after its end, this one stays.
    """
    check_numbers("cosine_decay", FINITE, init_value=init_value, alpha=alpha)
    check_numbers("cosine_decay", POSITIVE, decay_steps=decay_steps, exponent=exponent)

    def schedule(count: Tensor | int) -> Tensor:
        fraction = as_count(count).clamp(max=decay_steps) / decay_steps
        cosine = 0.5 * (1 + torch.cos(math.pi * fraction))
        return init_value * ((1 - alpha) * cosine**exponent + alpha)

    return schedule
