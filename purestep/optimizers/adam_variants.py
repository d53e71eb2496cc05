"""Variants of Adam with other second moments: Adamax, AdaBelief, Yogi, Adan, NovoGrad."""

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.belief import scale_by_belief
from ..transforms.controlled_growth import scale_by_yogi
from ..transforms.decay import add_decayed_weights
from ..transforms.gradient_differences import scale_by_adan
from ..transforms.infinity_norm import scale_by_adamax
from ..transforms.layer_moments import scale_by_novograd
from ..transforms.scaling import scale_by_learning_rate


def adamax(learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> GradientTransform:
    """Adam with the decaying maximum of magnitudes in place of the root of squares; `torch.optim.Adamax` with the same arguments."""
    return chain(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate), name="adamax")


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
) -> GradientTransform:
    """Adamax with decoupled weight decay.

    Args:
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.
    """
    return chain(
        scale_by_adamax(b1, b2, eps), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate), name="adamaxw"
    )


def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransform:
    """Adam with the variance around the mean in place of the squares; see `scale_by_belief`."""
    return chain(scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov), scale_by_learning_rate(learning_rate), name="adabelief")


def yogi(learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3) -> GradientTransform:
    """Adam with slowly growing squares; see `scale_by_yogi`."""
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate), name="yogi")


def adan(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    eps_root: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """Adam with Nesterov momentum by differences of gradients; see `scale_by_adan`.

    Args:
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.
    """
    return chain(
        scale_by_adan(b1, b2, b3, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="adan",
    )


def novograd(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.25,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> GradientTransform:
    """Momentum of leaves normalized by their running norms; see `scale_by_novograd`."""
    return chain(scale_by_novograd(b1, b2, eps, eps_root, weight_decay), scale_by_learning_rate(learning_rate), name="novograd")
