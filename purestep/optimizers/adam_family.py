"""Adam and its near relatives: `adam`, `adamw`."""

import torch

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.adam_moments import scale_by_adam
from ..transforms.decay import add_decayed_weights
from ..transforms.scaling import scale_by_learning_rate


def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransform:
    """Adam: `scale_by_adam`, then the learning rate.

    Equal to `torch.optim.Adam(lr, (b1, b2), eps)`. With `nesterov` it is optax's `nadam`, which `torch.optim.NAdam` differs from.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        nesterov: Look ahead, see `scale_by_adam`.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, Algorithm 1. arXiv:1412.6980
    """
    moments = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(moments, scale_by_learning_rate(learning_rate), name="adam")


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransform:
    """Adam with decoupled weight decay: `u <- -learning_rate (adam(u) + weight_decay p)`.

    Equal to `torch.optim.AdamW(lr, (b1, b2), eps, weight_decay)`, whose default decay is 1e-2.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        weight_decay: Times the learning rate; number or schedule. Not negative.
        mask: Which leaves decay: a pattern, a tree of bools or a function of the parameters; all by default. `at_least_2d` spares biases
            and scales.
        nesterov: Look ahead, see `scale_by_adam`.

    Reference:
        Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, Algorithm 2. arXiv:1711.05101
    """
    moments = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(moments, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate), name="adamw")
