"""Successors of Adam: AdEMAMix, ADOPT, ACProp."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask
from ..core.transform import GradientTransform, chain
from ..transforms.decay import add_decayed_weights
from ..transforms.delayed_squares import fourth_root, scale_by_acprop, scale_by_adopt
from ..transforms.scaling import scale_by_learning_rate
from ..transforms.two_means import scale_by_ademamix, scale_by_simplified_ademamix


def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """AdamW with a second, slow mean of the gradients; see `scale_by_ademamix`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the fast mean, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        b3: Decay of the slow mean, in [0, 1); number or schedule.
        alpha: Weight of the slow mean; number or schedule, finite.
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        mu_dtype: Storage of both means; float32 or wider by default.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.

    Reference:
        Pagliardini et al., "The AdEMAMix optimizer: better, faster, older", 2024, Algorithm 1. arXiv:2409.03137
    """
    return chain(
        scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="ademamix",
    )


def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.99,
    b2: float = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """AdamW with one decaying sum of the gradients and a weight on the current one; see `scale_by_simplified_ademamix`.

    Args:
        learning_rate: Smaller than Adam's by about `1 - b1`; number or schedule. Finite; negative climbs.
        b1: Decay of the sum of gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        alpha: Weight of the current gradient; number or schedule, finite.
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added inside the root, in the units of squared gradients. Not negative.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.

    Reference:
        Morwani et al., "Connections between schedule-free optimizers, AdEMAMix, and accelerated SGD variants", 2025, Algorithm 1.
        arXiv:2502.02431
    """
    return chain(
        scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="simplified_ademamix",
    )


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.9999,
    eps: float = 1e-6,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Tensor], Tensor] = fourth_root,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """Adam that normalizes by past squares only; see `scale_by_adopt`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of normalized gradients, in [0, 1).
        b2: Decay of their squares, in [0, 1).
        eps: Floor of the root, in the units of the gradients. Not negative.
        mu_dtype: Storage of the mean; float32 or wider by default.
        nesterov: Mix the normalized gradient into the mean once more.
        use_clipping: Bound the normalized gradients.
        clip_value_fn: The bound as a function of the number of updates so far.
        weight_decay: Times the learning rate; number or schedule. Not negative. Ours, optax has none.
        mask: Which leaves decay; all by default.

    Reference:
        Taniguchi et al., "ADOPT: modified Adam can converge with any beta2 with the optimal rate", 2024, Algorithm 2. arXiv:2411.02853
    """
    return chain(
        scale_by_adopt(b1, b2, eps, mu_dtype, nesterov=nesterov, use_clipping=use_clipping, clip_value_fn=clip_value_fn),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="adopt",
    )


def acprop(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransform:
    """Gradient descent normalized by the past variance; see `scale_by_acprop`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the squared deviations, in [0, 1).
        eps: Added outside the root, in the units of the gradients. Not negative.
        eps_root: Added to these at every update, in the units of squared gradients. Not negative.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.

    Reference:
        Zhuang et al., "Momentum centering and asynchronous update for adaptive gradient methods", 2021, Algorithm 3. arXiv:2110.05454
    """
    return chain(
        scale_by_acprop(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="acprop",
    )
