"""Optimizers that change one thing in Adam: `nadam`, `nadamw`, `amsgrad`, `radam`, `lamb`."""

import torch

from ..core.ranges import NOT_NEGATIVE, check_numbers
from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.adam_moments import scale_by_adam
from ..transforms.adam_variants import Convention, check_convention, scale_by_amsgrad, scale_by_nadam, scale_by_radam
from ..transforms.block_norms import scale_by_trust_ratio
from ..transforms.decay import add_decayed_weights
from ..transforms.scaling import scale_by_learning_rate


def nadam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    convention: Convention = "optax",
    momentum_decay: float = 4e-3,
) -> GradientTransform:
    """Adam with Nesterov momentum.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        convention: "optax" is `adam(nesterov=True)`; "torch" is `torch.optim.NAdam(lr, (b1, b2), eps, momentum_decay=...)`, whose momentum
            follows Dozat's schedule and which has no `eps_root`.
        momentum_decay: Speed of that schedule; only with "torch". Not negative.

    Reference:
        Dozat, "Incorporating Nesterov momentum into Adam", 2016, Algorithm 2.
    """
    scaling = _nesterov_moments("nadam", b1, b2, eps, eps_root, mu_dtype, convention, momentum_decay)
    return chain(scaling, scale_by_learning_rate(learning_rate), name="nadam")


def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
    *,
    convention: Convention = "optax",
    momentum_decay: float = 4e-3,
) -> GradientTransform:
    """`nadam` with decoupled weight decay; with "torch", `torch.optim.NAdam(decoupled_weight_decay=True)`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        weight_decay: Times the learning rate; number or schedule. Not negative.
        mask: Which leaves decay; all by default.
        convention: As in `nadam`.
        momentum_decay: Speed of the schedule of momentum; only with "torch". Not negative.

    Reference:
        Dozat, "Incorporating Nesterov momentum into Adam", 2016, Algorithm 2. Loshchilov and Hutter, "Decoupled weight decay
        regularization", 2019, Algorithm 2. arXiv:1711.05101
    """
    scaling = _nesterov_moments("nadamw", b1, b2, eps, eps_root, mu_dtype, convention, momentum_decay)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate), name="nadamw")


def _nesterov_moments(function, b1, b2, eps, eps_root, mu_dtype, convention: Convention, momentum_decay: float) -> GradientTransform:
    check_convention(function, convention)
    check_numbers(function, NOT_NEGATIVE, momentum_decay=momentum_decay)
    if convention == "optax":
        return scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=True)
    if eps_root != 0:
        raise ValueError(f"{function}: convention 'torch' has no eps_root, got {eps_root}")
    return scale_by_nadam(b1, b2, eps, momentum_decay=momentum_decay, mu_dtype=mu_dtype)


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    convention: Convention = "optax",
) -> GradientTransform:
    """Adam that never forgets its largest second moment: `scale_by_amsgrad`, then the learning rate.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        bias_correction_mu: False leaves the mean as it is, as in the paper.
        bias_correction_nu: False leaves the squares as they are, as in the paper.
        convention: "torch" equals `torch.optim.Adam(amsgrad=True)`, which most published interatomic potentials were trained with.

    Reference:
        Reddi et al., "On the convergence of Adam and beyond", 2018, Algorithm 2. arXiv:1904.09237
    """
    moments = scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu, convention=convention)
    return chain(moments, scale_by_learning_rate(learning_rate), name="amsgrad")


def radam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
    convention: Convention = "optax",
) -> GradientTransform:
    """Rectified Adam: `scale_by_radam`, then the learning rate.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        threshold: Degrees of freedom from which on the squares are trusted.
        nesterov: Look ahead, see `scale_by_adam`.
        convention: "torch" equals `torch.optim.RAdam(lr, (b1, b2), eps)`.

    Reference:
        Liu et al., "On the variance of the adaptive learning rate and beyond", 2020, Algorithm 2. arXiv:1908.03265
    """
    moments = scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov, convention=convention)
    return chain(moments, scale_by_learning_rate(learning_rate), name="radam")


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """AdamW whose steps are as long, leaf by leaf, as the parameters: for large batches.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        weight_decay: Times the learning rate; number or schedule. Not negative.
        mask: Which leaves decay; all by default.

    Reference:
        You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020, Algorithm 2. arXiv:1904.00962
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
        name="lamb",
    )
