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
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        l2_norm_clip: Largest joint norm of one example's gradient. Positive.
        noise_multiplier: Deviation of the noise, in units of `l2_norm_clip`. Not negative.
        key: Start of the random stream, a whole number. It is a secret.
        momentum: Decay of `trace`, in [0, 1); none by default.
        nesterov: See `trace`.

    Reference:
        Abadi et al., "Deep learning with differential privacy", 2016, Algorithm 1. arXiv:1607.00133
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
