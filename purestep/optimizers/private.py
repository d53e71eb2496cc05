"""Gradient descent with differential privacy."""

from ..core.ranges import DECAY, check_numbers
from ..core.schedule import ScalarOrSchedule
from ..core.transform import GradientTransform, chain
from ..transforms.momentum import trace
from ..transforms.privacy import differentially_private_aggregate
from ..transforms.scaling import scale_by_learning_rate


def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: float,
    noise_multiplier: float,
    key: int = 0,
    momentum: float | None = None,
    nesterov: bool = False,
) -> GradientTransform:
    """Descend along clipped, noisy means of per-example gradients; see `differentially_private_aggregate`.

    Args:
        momentum: Decay of `trace`; none by default.
        nesterov: See `trace`.
    """
    if momentum is not None:
        check_numbers("dpsgd", DECAY, momentum=momentum)
    momenta = () if momentum is None else (trace(momentum, nesterov),)
    return chain(
        differentially_private_aggregate(l2_norm_clip, noise_multiplier, key),
        *momenta,
        scale_by_learning_rate(learning_rate),
        name="dpsgd",
    )
