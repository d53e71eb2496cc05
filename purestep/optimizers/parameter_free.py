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
        learning_rate: Factor on the step that was found.
        weight_decay: Added to the gradient.
        mask: Which leaves decay; all by default.
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
        learning_rate: Factor on the step that was found.
        weight_decay: Added to the gradient.
        mask: Which leaves decay; all by default.
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
        learning_rate: Factor on the gradients before the bets, which makes little difference.
        weight_decay: Added to the gradient.
        mask: Which leaves decay; all by default.
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
        weight_decay: Added to the gradient.
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps), name="madgrad")
