"""Optimizers with sublinear memory: `adafactor`."""

import torch

from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, NOT_POSITIVE, POSITIVE_LIMIT, check_numbers, check_schedulable, check_whole
from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.averaging import ema
from ..transforms.block_clipping import clip_by_block_rms
from ..transforms.block_norms import scale_by_param_block_rms
from ..transforms.decay import add_decayed_weights
from ..transforms.factored import scale_by_factored_rms, scale_by_relative_step
from ..transforms.scaling import scale, scale_by_learning_rate


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    dtype_momentum: torch.dtype = torch.float32,
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: Mask | None = None,
) -> GradientTransform:
    """Adam's scaling from one row and one column of squares per matrix.

    `torch.optim.Adafactor` factors other dimensions and shortens its steps as 1 / sqrt(t); see `adafactor_torch`.

    Args:
        learning_rate: Number or schedule, finite. `None` leaves the steps relative to the parameters' scale alone.
        min_dim_size_to_factor: Matrices with a smaller side keep every square; a whole number.
        decay_rate: Exponent of the growing memory of squares. Not negative.
        decay_offset: Number of updates that do not count for it.
        multiply_by_parameter_scale: Make steps relative to the root mean square of each leaf.
        clipping_threshold: Largest root mean square of a leaf's update, before the learning rate. Positive; None does not clip.
        momentum: Decay of a mean of the updates, in [0, 1); none by default.
        dtype_momentum: Storage of that mean; never narrower than the arithmetic on it.
        weight_decay_rate: Not multiplied by the learning rate; number or schedule. Not negative.
        eps: Added to the squares. Not negative.
        factored: False keeps every square.
        weight_decay_mask: Which leaves decay; all by default.

    Reference:
        Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018, Algorithm 4. arXiv:1804.04235
    """
    check_numbers("adafactor", NOT_NEGATIVE, decay_rate=decay_rate, eps=eps)
    check_whole("adafactor", FINITE, decay_offset=decay_offset)
    if clipping_threshold is not None:
        check_numbers("adafactor", POSITIVE_LIMIT, clipping_threshold=clipping_threshold)
    if momentum is not None:
        check_numbers("adafactor", DECAY, momentum=momentum)
    if weight_decay_rate is not None:
        check_schedulable("adafactor", NOT_NEGATIVE, weight_decay_rate=weight_decay_rate)
    parts = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    parts += [] if clipping_threshold is None else [clip_by_block_rms(clipping_threshold)]
    parts += [] if learning_rate is None else [scale_by_learning_rate(learning_rate, flip_sign=False)]
    parts += [scale_by_param_block_rms()] if multiply_by_parameter_scale else []
    parts += [] if momentum is None else [ema(momentum, debias=False, accumulator_dtype=dtype_momentum)]
    parts += [] if weight_decay_rate is None else [add_decayed_weights(weight_decay_rate, weight_decay_mask)]
    return chain(*parts, scale(-1.0), name="adafactor")


def adafactor_torch(
    learning_rate: ScalarOrSchedule = 1e-2,
    beta2_decay: float = -0.8,
    eps1: float = 2.0**-23,
    eps2: float = 1e-3,
    clipping_threshold: float = 1.0,
    weight_decay: float = 0.0,
) -> GradientTransform:
    """Adafactor as `torch.optim.Adafactor(lr, beta2_decay, (eps1, eps2), d, weight_decay)` defines it.

    It factors the last two dimensions of every leaf that has them and takes steps of at most `min(learning_rate, 1 / sqrt(t))` of
    each leaf's root mean square.

    Args:
        learning_rate: Largest relative step; number or schedule, finite.
        beta2_decay: Minus the exponent of the growing memory of squares. Not positive.
        eps1: Floor of the squares; torch's default is the machine epsilon of the parameters, here that of float32. Not negative.
        eps2: Smallest scale of a leaf, in the units of the parameters. Not negative.
        clipping_threshold: torch's `d`: largest root mean square of a leaf's update. Positive.
        weight_decay: Decoupled, multiplied by the learning rate; a number. Not negative.

    Reference:
        `torch.optim.Adafactor` of torch 2.13. Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018,
        Algorithm 4 and section 8. arXiv:1804.04235
    """
    check_numbers("adafactor_torch", NOT_POSITIVE, beta2_decay=beta2_decay)
    check_numbers("adafactor_torch", NOT_NEGATIVE, eps1=eps1, eps2=eps2)
    check_numbers("adafactor_torch", POSITIVE_LIMIT, clipping_threshold=clipping_threshold)
    squares = scale_by_factored_rms(decay_rate=-beta2_decay, epsilon=eps1, convention="torch")
    steps = scale_by_relative_step(learning_rate, weight_decay, eps2)
    return chain(squares, clip_by_block_rms(clipping_threshold), steps, name="adafactor_torch")
