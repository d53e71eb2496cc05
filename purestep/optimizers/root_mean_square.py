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
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        decay: Of the mean of squares, in [0, 1); torch's `alpha`.
        eps: Added inside the root, or outside with `eps_in_sqrt=False`. Not negative.
        initial_scale: What the mean of squares starts from. Not negative.
        eps_in_sqrt: See `eps`.
        centered: Divide by the standard deviation instead.
        momentum: Decay of a trace of the steps, in [0, 1); none by default.
        nesterov: Look ahead along that trace.
        bias_correction: Divide the means by `1 - decay^t`.

    Reference:
        Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012. Centered: Graves, "Generating sequences with recurrent neural networks", 2013,
        equations 38 to 45. arXiv:1308.0850
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

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        initial_accumulator_value: What the sum of squares starts from; 0 in torch. Not negative.
        eps: Added inside the root, or outside with `eps_in_sqrt=False`. Not negative.
        eps_in_sqrt: See `eps`.

    Reference:
        Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization", 2011 (with diagonal matrices).
    """
    return chain(
        scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt), scale_by_learning_rate(learning_rate), name="adagrad"
    )
