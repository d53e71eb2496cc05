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
    """Adam with the decaying maximum of magnitudes in place of the root of squares; `torch.optim.Adamax` with the same arguments.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the largest magnitude, in [0, 1).
        eps: Added to each magnitude, in the units of the gradients. Not negative.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, Algorithm 2. arXiv:1412.6980
    """
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
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the largest magnitude, in [0, 1).
        eps: Added to each magnitude, in the units of the gradients. Not negative.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, Algorithm 2. arXiv:1412.6980. Loshchilov and Hutter, "Decoupled
        weight decay regularization", 2019. arXiv:1711.05101
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
    """Adam with the variance around the mean in place of the squares; see `scale_by_belief`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the squared deviations, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added to these at every update, in the units of squared gradients. Not negative.
        nesterov: Look ahead, see `scale_by_adam`.

    Reference:
        Zhuang et al., "AdaBelief optimizer: adapting stepsizes by the belief in observed gradients", 2020, Algorithm 2. arXiv:2010.07468.
        The defaults of `eps` and `eps_root` are optax's.
    """
    return chain(scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov), scale_by_learning_rate(learning_rate), name="adabelief")


def yogi(learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3) -> GradientTransform:
    """Adam with slowly growing squares; see `scale_by_yogi`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the squares, in [0, 1): an update changes them by `1 - b2` times its own square.
        eps: Added outside the root, in the units of the gradients. Not negative.

    Reference:
        Zaheer et al., "Adaptive methods for nonconvex optimization", 2018, Algorithm 2.
    """
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
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the mean of changes of the gradient, in [0, 1).
        b3: Decay of the squares, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.

    Reference:
        Xie et al., "Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models", 2022, Algorithm 1. arXiv:2208.06677.
        With the changes that `scale_by_adan` names.
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
    """Momentum of leaves normalized by their running norms; see `scale_by_novograd`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the sum of normalized gradients, in [0, 1).
        b2: Decay of the squared norms, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        weight_decay: Added to the normalized gradient, times the parameters; number or schedule. Not negative.

    Reference:
        Ginsburg et al., "Stochastic gradient methods with layer-wise adaptive moments for training of deep networks", 2019, Algorithm 1.
        arXiv:1905.11286
    """
    return chain(scale_by_novograd(b1, b2, eps, eps_root, weight_decay), scale_by_learning_rate(learning_rate), name="novograd")
