"""Plain gradient descent, with or without momentum: `sgd`."""

import torch

from ..core.ranges import DECAY, FRACTION, check_numbers
from ..core.schedule import ScalarOrSchedule
from ..core.transform import GradientTransform, chain
from ..transforms.momentum import trace
from ..transforms.scaling import scale_by_learning_rate


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: torch.dtype | None = None,
    *,
    dampening: float = 0.0,
) -> GradientTransform:
    """Gradient descent: `u <- -learning_rate t` with `t` from `trace`.

    Equal to `torch.optim.SGD(lr, momentum, dampening, nesterov=nesterov)`; its `weight_decay` is
    `chain(add_decayed_weights(weight_decay), sgd(...))`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        momentum: Decay of the trace, in [0, 1); none by default.
        nesterov: Look ahead along the trace.
        accumulator_dtype: Storage of the trace.
        dampening: As in torch, in [0, 1]: new gradients enter the trace with weight `1 - dampening`, the first with 1.

    Reference:
        Robbins and Monro, "A stochastic approximation method", 1951. Momentum as in `trace`: Sutskever et al., "On the importance of
        initialization and momentum in deep learning", 2013, with the learning rate outside.
    """
    if momentum is not None:
        check_numbers("sgd", DECAY, momentum=momentum)
    check_numbers("sgd", FRACTION, dampening=dampening)
    step = scale_by_learning_rate(learning_rate)
    if momentum is None:
        return chain(step, name="sgd")
    return chain(trace(momentum, nesterov, accumulator_dtype, dampening=dampening), step, name="sgd")
