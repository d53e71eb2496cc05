"""Optimizers whose steps have one size in every element: `lion`."""

import torch

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.decay import add_decayed_weights
from ..transforms.scaling import scale_by_learning_rate
from ..transforms.sign_momentum import scale_by_lion


def lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: torch.dtype | None = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: Mask | None = None,
) -> GradientTransform:
    """Sign of a momentum, and decoupled weight decay; learning rates are 3 to 10 times smaller than AdamW's.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Weight of the mean in a step, in [0, 1).
        b2: Decay of the mean, in [0, 1).
        mu_dtype: Storage of the mean; float32 or wider by default.
        weight_decay: Times the learning rate; number or schedule. Not negative.
        mask: Which leaves decay; all by default.

    Reference:
        Chen et al., "Symbolic discovery of optimization algorithms", 2023, Algorithm 2. arXiv:2302.06675
    """
    step = scale_by_learning_rate(learning_rate)
    return chain(scale_by_lion(b1, b2, mu_dtype), add_decayed_weights(weight_decay, mask), step, name="lion")
