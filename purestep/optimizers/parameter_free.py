"""Optimizers that need no learning rate, or find it: DoG, DoWG, COCOB, MADGRAD's dual averaging beside them.

`prodigy`, `dadapt_adamw`, `momo` and `mechanize` are whole optimizers already, in `transforms`.
"""

from typing import Literal

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.coin_betting import scale_by_cocob
from ..transforms.decay import add_decayed_weights
from ..transforms.distance_over_gradients import scale_by_dog, scale_by_dowg
from ..transforms.dual_averaging import scale_by_madgrad
from ..transforms.scaling import scale_by_learning_rate


def _decay(weight_decay: ScalarOrSchedule | None, mask: Mask | None) -> tuple[GradientTransform, ...]:
    return () if weight_decay is None else (add_decayed_weights(weight_decay, mask),)


def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[Literal["distance", "learning_rate", "heuristic"], float] = ("heuristic", 1e-6),
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Mask | None = None,
) -> GradientTransform:
    """Descend by the distance gone over the gradients seen; see `scale_by_dog`. An average of the parameters should go with it.

    Args:
        learning_rate: Factor on the step that was found; number or schedule, finite.
        init_step: How the first step is found, see `scale_by_dog`.
        eps: Added to the sum of squares. Not negative.
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        mask: Which leaves decay; all by default.

    Reference:
        Ivgi et al., "DoG is SGD's best friend", 2023, eq. 1. arXiv:2302.12022
    """
    return chain(*_decay(weight_decay, mask), scale_by_dog(init_step, eps), scale_by_learning_rate(learning_rate), name="dog")


def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: float | None = None,
    eps: float = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Mask | None = None,
) -> GradientTransform:
    """Descend by the distance gone over the gradients weighed by it; see `scale_by_dowg`.

    Args:
        learning_rate: Factor on the step that was found; number or schedule, finite.
        init_estim_sq_dist: Squared distance at the start, in the units of squared parameters. Positive; `eps` by default.
        eps: Added to the root of the sum. Positive.
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        mask: Which leaves decay; all by default.

    Reference:
        Khaled et al., "DoWG unleashed: an efficient universal parameter-free gradient descent method", 2023, Algorithm 1. arXiv:2305.16284
    """
    return chain(*_decay(weight_decay, mask), scale_by_dowg(init_estim_sq_dist, eps), scale_by_learning_rate(learning_rate), name="dowg")


def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: float = 100.0,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """Bet on the sign of the next gradient; see `scale_by_cocob`.

    Args:
        learning_rate: Factor on the gradients before the bets, which makes little difference; number or schedule, finite.
        alpha: Holds back the first bets. Not negative.
        eps: First value of the largest magnitude, in the units of the gradients. Not negative.
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        mask: Which leaves decay; all by default.

    Reference:
        Orabona and Tommasi, "Training deep networks without learning rates through coin betting", 2017, Algorithm 2. arXiv:1705.07795
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
        name="cocob",
    )


def madgrad(
    learning_rate: ScalarOrSchedule, momentum: float = 0.9, weight_decay: ScalarOrSchedule = 0.0, eps: float = 1e-6
) -> GradientTransform:
    """Dual averaging with adaptive steps; see `scale_by_madgrad`.

    Args:
        learning_rate: Number or schedule. Not negative.
        momentum: Share of the old parameters, in [0, 1).
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        eps: Added to the learning rate and to the cube root. Not negative.

    Reference:
        Defazio and Jelassi, "Adaptivity without compromise: a momentumized, adaptive, dual averaged gradient method for stochastic
        optimization", 2021, Algorithm 1. arXiv:2101.11075
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps), name="madgrad")
