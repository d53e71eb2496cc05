"""Optimizers that estimate curvature: Sophia from samples, L-BFGS from the past."""

import torch

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.clipped_newton import scale_by_sophia
from ..transforms.decay import add_decayed_weights
from ..transforms.quasi_newton import scale_by_lbfgs
from ..transforms.scaling import scale, scale_by_learning_rate
from ..transforms.zoom_search import scale_by_zoom_linesearch


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
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the mean of estimates, in [0, 1).
        eps: Floor of the scaled curvature. Not negative.
        weight_decay: Times the learning rate.
        weight_decay_mask: Which leaves decay; all by default.
        gamma: Scales the curvature; larger clips less. Positive.
        clip_threshold: Largest element of an update, before the learning rate. Positive; None does not clip.
        update_interval: Updates between two estimates; at least 1.
        hessian_diagonal_fn: Transform whose updates are the estimates; `hutchinson_estimator_diag_hessian()` by default.
        mu_dtype: Storage of the mean; float32 or wider by default.

    Reference:
        Liu et al., "Sophia: a scalable stochastic second-order optimizer for language model pre-training", 2023, Algorithm 3.
        arXiv:2305.14342
    """
    return chain(
        scale_by_sophia(b1, b2, eps, gamma, clip_threshold, update_interval, hessian_diagonal_fn, mu_dtype),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
        name="sophia",
    )


_ZOOM = scale_by_zoom_linesearch(20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransform | None = _ZOOM,
) -> GradientTransform:
    """Step along L-BFGS directions, as far as a line search says; for full batches, relaxations and the like.

    With a line search it needs `value`, `grad` and `value_fn`, see `scale_by_zoom_linesearch`. `torch.optim.LBFGS` finds its steps
    inside one call, by a closure, and is not the same sequence.

    Args:
        learning_rate: Factor on the direction, a number or a schedule, finite; 1 by default.
        memory_size: Number of changes that are kept; at least 1.
        scale_init_precond: Begin with a multiple of the identity found from the latest change, see `scale_by_lbfgs`.
        linesearch: Zoom with up to 20 evaluations by default; None takes steps of length `learning_rate`.

    Reference:
        Nocedal and Wright, "Numerical optimization", 2nd edition, 2006, Algorithms 7.4 and 7.5.
    """
    downhill = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    search = () if linesearch is None else (linesearch,)
    return chain(scale_by_lbfgs(memory_size, scale_init_precond), downhill, *search, name="lbfgs")
