"""Schedule-free optimizers: SGD and AdamW whose average takes the place of a schedule and of momentum."""

import torch

from ..core.ranges import DECAY, at_least, check_numbers, check_whole
from ..core.schedule import ScalarOrSchedule
from ..core.transform import GradientTransform, chain
from ..schedules.warmup import warmup_constant
from ..transforms.decay import add_decayed_weights
from ..transforms.iterate_averaging import schedule_free
from ..transforms.root_mean_square import scale_by_rms
from ..transforms.scaling import scale_by_learning_rate


def _warmed(function: str, learning_rate: ScalarOrSchedule, warmup_steps: int | None) -> ScalarOrSchedule:
    if warmup_steps is None:
        return learning_rate
    check_whole(function, at_least(0), warmup_steps=warmup_steps)
    if not isinstance(learning_rate, int | float):
        raise ValueError(f"{function}: give warmup_steps with a number as learning_rate, or the whole schedule as learning_rate")
    return warmup_constant(0.0, learning_rate, warmup_steps)


def schedule_free_sgd(
    learning_rate: ScalarOrSchedule = 1.0,
    warmup_steps: int | None = None,
    b1: float = 0.9,
    weight_decay: ScalarOrSchedule | None = None,
    weight_lr_power: float = 2.0,
    state_dtype: torch.dtype | None = None,
    *,
    count_from: int = 1,
) -> GradientTransform:
    """Descend along the gradient, and average. Save and validate at `schedule_free_eval_params`.

    Args:
        learning_rate: Constant after the warm-up, or a schedule; finite.
        warmup_steps: Of a linear rise from 0; at least 0. None and 0 have none.
        b1: How near to the average gradients are taken; above 0, at most 1.
        weight_decay: Added to the gradient, times the parameters; number or schedule. Not negative.
        weight_lr_power: 0 weighs all updates alike in the average. Not negative.
        state_dtype: Of the fast sequence; that of the parameters, but at least float32, by default.
        count_from: 1 has the weights of optax; 0 those of the learning rates really used.

    Reference:
        Defazio et al., "The road less scheduled", 2024, eq. 3 to 5 and section 4. arXiv:2405.15682
    """
    rate = _warmed("schedule_free_sgd", learning_rate, warmup_steps)
    decay = () if weight_decay is None else (add_decayed_weights(weight_decay),)
    descent = chain(*decay, scale_by_learning_rate(rate), name="sgd")
    return chain(schedule_free(descent, rate, b1, weight_lr_power, state_dtype, count_from=count_from), name="schedule_free_sgd")


def schedule_free_adamw(
    learning_rate: ScalarOrSchedule = 0.0025,
    warmup_steps: int | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_lr_power: float = 2.0,
    state_dtype: torch.dtype | None = None,
    *,
    count_from: int = 1,
) -> GradientTransform:
    """Descend as AdamW does without its first moment, and average. Save and validate at `schedule_free_eval_params`.

    Args:
        learning_rate: Constant after the warm-up, or a schedule; finite.
        warmup_steps: Of a linear rise from 0; at least 0. None and 0 have none.
        b1: How near to the average gradients are taken; above 0, at most 1.
        b2: Decay of the squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        weight_decay: Times the learning rate, on the fast sequence; number or schedule. Not negative.
        weight_lr_power: 0 weighs all updates alike in the average. Not negative.
        state_dtype: Of the fast sequence; that of the parameters, but at least float32, by default.
        count_from: 1 has the weights of optax; 0 those of the learning rates really used.

    Reference:
        Defazio et al., "The road less scheduled", 2024, eq. 3 to 5 and section 4. arXiv:2405.15682
    """
    check_numbers("schedule_free_adamw", DECAY, b2=b2)
    rate = _warmed("schedule_free_adamw", learning_rate, warmup_steps)
    descent = chain(
        scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False, bias_correction=True),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(rate),
        name="adamw",
    )
    return chain(schedule_free(descent, rate, b1, weight_lr_power, state_dtype, count_from=count_from), name="schedule_free_adamw")
