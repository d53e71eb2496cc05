"""Optimizers that estimate curvature: Sophia."""

import torch

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.clipped_newton import scale_by_sophia
from ..transforms.decay import add_decayed_weights
from ..transforms.scaling import scale_by_learning_rate


def sophia(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.965,
    b2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    weight_decay_mask: Mask | None = None,
    gamma: float = 0.01,
    clip_threshold: float | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: GradientTransform | None = None,
    mu_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Divide momentum by an estimate of the diagonal Hessian, and clip; see `scale_by_sophia`.

    Needs `obj_fn`, the loss as a function of the parameters alone, unless another estimator is given.

    Args:
        weight_decay: Times the learning rate.
        weight_decay_mask: Which leaves decay; all by default.
    """
    return chain(
        scale_by_sophia(b1, b2, eps, gamma, clip_threshold, update_interval, hessian_diagonal_fn, mu_dtype),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
        name="sophia",
    )
