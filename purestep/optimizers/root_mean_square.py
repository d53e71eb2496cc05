"""Optimizers that divide by the root of squared gradients: `rmsprop`, `adagrad`."""

from ..core.ranges import DECAY, check_numbers
from ..core.schedule import ScalarOrSchedule
from ..core.transform import GradientTransform, chain
from ..transforms.momentum import trace
from ..transforms.root_mean_square import scale_by_rms, scale_by_rss, scale_by_stddev
from ..transforms.scaling import scale_by_learning_rate


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransform:
    """Gradient over the root of its running mean square, then the learning rate, then momentum.

    With `eps_in_sqrt=False` it equals `torch.optim.RMSprop(lr, alpha=decay, eps, momentum=..., centered=...)`, whose default
    alpha is 0.99, as long as the learning rate is constant (torch applies it after the momentum).

    Args:
        centered: Divide by the standard deviation instead.
        momentum: Decay of a trace of the steps; none by default.
        nesterov: Look ahead along that trace.
    """
    if momentum is not None:
        check_numbers("rmsprop", DECAY, momentum=momentum)
    scaling = (scale_by_stddev if centered else scale_by_rms)(decay, eps, initial_scale, eps_in_sqrt, bias_correction)
    steps = () if momentum is None else (trace(momentum, nesterov),)
    return chain(scaling, scale_by_learning_rate(learning_rate), *steps, name="rmsprop")


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: float = 0.1, eps: float = 1e-7, *, eps_in_sqrt: bool = True
) -> GradientTransform:
    """Gradient over the root of the sum of its squares, then the learning rate.

    `adagrad(lr, 0.0, 1e-10, eps_in_sqrt=False)` equals `torch.optim.Adagrad(lr)`; its `lr_decay` is a schedule of the learning rate.
    """
    return chain(
        scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt), scale_by_learning_rate(learning_rate), name="adagrad"
    )
