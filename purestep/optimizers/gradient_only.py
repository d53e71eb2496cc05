"""Optimizers that use the gradient as it comes, its sign or its size: sign methods, noise, optimism, Polyak's step, Rprop, Fromage."""

from typing import Literal

import torch

from ..core.ranges import DECAY, FINITE, POSITIVE, check_numbers, check_schedulable
from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.adam_moments import scale_by_adam
from ..transforms.averaging import ema
from ..transforms.block_norms import scale_by_trust_ratio
from ..transforms.covers import scale_by_sm3
from ..transforms.decay import add_decayed_weights
from ..transforms.gradient_differences import scale_by_optimistic_gradient
from ..transforms.noise import add_noise
from ..transforms.norm_preserving import step_and_shrink
from ..transforms.polyak_step import scale_by_polyak
from ..transforms.resilient import scale_by_rprop
from ..transforms.scaling import scale, scale_by_learning_rate
from ..transforms.sign_momentum import scale_by_sign
from ..transforms.unit_correction import scale_by_adadelta


def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransform:
    """Step against the sign of the gradient.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.

    Reference:
        Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018, Algorithm 1. arXiv:1802.04434
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate), name="sign_sgd")


def signum(learning_rate: ScalarOrSchedule, beta: float = 0.9, accumulator_dtype: torch.dtype | None = None) -> GradientTransform:
    """Step against the sign of the running mean of gradients.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        beta: Decay of the mean of gradients, in [0, 1).
        accumulator_dtype: Storage of the mean; float32 or wider by default.

    Reference:
        Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018, Algorithm 2. arXiv:1802.04434
    """
    check_numbers("signum", DECAY, beta=beta)
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
        name="signum",
    )


def noisy_sgd(learning_rate: ScalarOrSchedule, eta: float = 0.01, gamma: float = 0.55, key: int = 0) -> GradientTransform:
    """Gradient descent with noise that dies away; see `add_noise`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        eta: Variance of the noise at the first update, in the units of squared gradients. Not negative.
        gamma: Exponent of its decay. Not negative.
        key: Start of the random stream; any whole number.

    Reference:
        Neelakantan et al., "Adding gradient noise improves learning for very deep networks", 2015, equation 1. arXiv:1511.06807
    """
    return chain(add_noise(eta, gamma, key), scale_by_learning_rate(learning_rate), name="noisy_sgd")


def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule, alpha: ScalarOrSchedule = 1.0, beta: ScalarOrSchedule = 1.0
) -> GradientTransform:
    """Gradient descent that extrapolates; for games and saddle points. See `scale_by_optimistic_gradient`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        alpha: Weight of the gradient; number or schedule, finite.
        beta: Weight of its change; number or schedule, finite.

    Reference:
        Mokhtari et al., "A unified analysis of extra-gradient and optimistic gradient methods for saddle point problems", 2019, eq. 9.
        arXiv:1901.08511
    """
    return chain(scale_by_optimistic_gradient(alpha, beta), scale_by_learning_rate(learning_rate), name="optimistic_gradient_descent")


def optimistic_adam(
    learning_rate: float,
    optimism: float | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = True,
) -> GradientTransform:
    """Adam that extrapolates by `optimism`, in the arguments of optax's older form; `optimistic_adam_v2` takes schedules.

    Args:
        learning_rate: Number, no schedule. Positive: `optimism` is divided by it.
        optimism: Step size of the extrapolation, finite; `learning_rate` by default. It keeps its ratio to the learning rate when that is
            set.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        nesterov: Look ahead, see `scale_by_adam`.

    Reference:
        Daskalakis et al., "Training GANs with optimism", 2017, Algorithm 1. arXiv:1711.00141
    """
    check_numbers("optimistic_adam", POSITIVE, learning_rate=learning_rate)
    if optimism is not None:
        check_numbers("optimistic_adam", FINITE, optimism=optimism)
    ratio = 1.0 if optimism is None else optimism / learning_rate
    return optimistic_adam_v2(
        learning_rate, beta=ratio, b1=b1, b2=b2, eps=eps, eps_root=eps_root, mu_dtype=mu_dtype, nesterov=nesterov
    )._replace(name="optimistic_adam")


def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: ScalarOrSchedule = 1.0,
    beta: ScalarOrSchedule = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    nesterov: bool = True,
) -> GradientTransform:
    """Adam whose steps are extrapolated; for games and saddle points.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        alpha: Weight of a step, see `scale_by_optimistic_gradient`; number or schedule, finite.
        beta: Weight of its change; number or schedule, finite.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        nesterov: Look ahead, see `scale_by_adam`.

    Reference:
        Daskalakis et al., "Training GANs with optimism", 2017, Algorithm 1. arXiv:1711.00141
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
        name="optimistic_adam_v2",
    )


def polyak_sgd(
    max_learning_rate: float = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: float = 0.0,
    eps: float = 0.0,
    variant: Literal["sps", "sps+"] = "sps",
) -> GradientTransform:
    """Gradient descent with Polyak's step size; see `scale_by_polyak`. Needs `value`.

    Args:
        max_learning_rate: Largest step size. Positive.
        scaling: Factor on the gradient before its norm is taken; number or schedule, finite.
        f_min: Least possible loss; finite.
        eps: Added to the squared norm. Not negative.
        variant: `"sps+"` takes no step where the loss is below `f_min`, `"sps"` one uphill.

    Reference:
        Loizou et al., "Stochastic Polyak step-size for SGD", 2021, eq. 3. arXiv:2002.10542
    """
    check_schedulable("polyak_sgd", FINITE, scaling=scaling)
    return chain(scale_by_learning_rate(scaling), scale_by_polyak(f_min, max_learning_rate, eps, variant), name="polyak_sgd")


def rprop(
    learning_rate: float,
    eta_minus: float = 0.5,
    eta_plus: float = 1.2,
    min_step_size: float = 1e-6,
    max_step_size: float = 50.0,
    *,
    convention: Literal["optax", "torch"] = "optax",
) -> GradientTransform:
    """Steps from signs alone; for full batches. `convention="torch"` is `torch.optim.Rprop(lr, etas, step_sizes)`.

    Args:
        learning_rate: First step size, in the units of the parameters; a number. Positive.
        eta_minus: Factor on a step size when the sign changes, in (0, 1).
        eta_plus: Factor on a step size while the sign stays; above 1.
        min_step_size: Smallest step size. Not negative.
        max_step_size: Largest step size; at least the smallest.
        convention: See `scale_by_rprop`.

    Reference:
        Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm", 1993.
    """
    return chain(
        scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size, convention=convention),
        scale(-1.0),
        name="rprop",
    )


def fromage(learning_rate: ScalarOrSchedule, min_norm: float = 1e-6) -> GradientTransform:
    """Step by a fraction of each leaf's own norm, then shrink; see `step_and_shrink`.

    Args:
        learning_rate: Relative size of a step; number or schedule, finite.
        min_norm: Floor on the norms, see `scale_by_trust_ratio`. Not negative.

    Reference:
        Bernstein et al., "On the distance between two neural networks and the stability of learning", 2020, Algorithm 1. arXiv:2002.03432
    """
    return chain(scale_by_trust_ratio(min_norm), step_and_shrink(learning_rate), name="fromage")


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask | None = None,
) -> GradientTransform:
    """Steps with the units of the parameters; see `scale_by_adadelta`.

    `torch.optim.Adadelta` with the same arguments; its learning rate is 1 by default.

    Args:
        learning_rate: None leaves the updates as they are, sign included, as in optax: give 1 to descend.
        rho: Decay of both means, in [0, 1).
        eps: Added inside both roots, in the units of squared gradients. Not negative.
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        weight_decay_mask: Which leaves decay; all by default.

    Reference:
        Zeiler, "ADADELTA: an adaptive learning rate method", 2012, Algorithm 1. arXiv:1212.5701
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
        name="adadelta",
    )


def sm3(learning_rate: ScalarOrSchedule, momentum: float = 0.9) -> GradientTransform:
    """Adagrad in little memory; see `scale_by_sm3`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        momentum: Decay of the mean of scaled updates, in [0, 1).

    Reference:
        Anil et al., "Memory-efficient adaptive optimization", 2019, Algorithm SM3-II. arXiv:1901.11150
    """
    check_numbers("sm3", DECAY, momentum=momentum)
    return chain(scale_by_sm3(momentum), scale_by_learning_rate(learning_rate), name="sm3")
