"""Optimizers that fit the length of a step to each leaf: `lars`."""

from ..core.ranges import DECAY, check_numbers
from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask, masked
from ..core.transform import GradientTransform, chain
from ..transforms.block_norms import scale_by_trust_ratio
from ..transforms.decay import add_decayed_weights
from ..transforms.momentum import trace
from ..transforms.scaling import scale_by_learning_rate


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask = True,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    trust_ratio_mask: Mask = True,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> GradientTransform:
    """Gradient descent with momentum whose steps are proportional, leaf by leaf, to the parameters' norm.

    The learning rate stands before the momentum, as in the paper.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        weight_decay: Added before the trust ratio; number or schedule. Not negative.
        weight_decay_mask: Which leaves decay.
        trust_coefficient: Ratio of the norms of step and parameters, before the learning rate. Not negative.
        eps: Added to the norm of the update. Not negative.
        trust_ratio_mask: Which leaves are scaled by the ratio; biases and scales usually are not.
        momentum: Decay of the trace of steps, in [0, 1).
        nesterov: Look ahead along that trace.

    Reference:
        You et al., "Large batch training of convolutional networks", 2017, Algorithm 1. arXiv:1708.03888
    """
    check_numbers("lars", DECAY, momentum=momentum)
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
        name="lars",
    )
