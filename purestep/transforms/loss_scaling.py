"""Loss scaling for float16: the gate `dynamic_loss_scale`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import GROWING, POSITIVE, POSITIVE_LIMIT, SHRINKING, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen
from .nonfinite import first_bad_leaf


class DynamicLossScaleState(NamedTuple):
    """State of `dynamic_loss_scale`."""

    scale: Tensor  # 0-d float32, what the next loss is multiplied by
    good_steps: Tensor  # 0-d int64, finite batches since the scale last changed
    skipped: Tensor  # 0-d int64, batches rejected so far

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The scale of the next batch and the number of batches rejected."""
        return {"loss_scale/scale": self.scale, "loss_scale/skipped": self.skipped}


def dynamic_loss_scale(
    initial_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    min_scale: float = 1.0,
    max_scale: float = 2.0**24,
) -> GradientTransform:
    """Multiply the loss before its gradient is taken, divide the gradient afterwards, and reject batches that overflow.

    Stands first in a chain: every later part, clipping included, sees gradients of the loss itself, in float32 or wider. The step
    multiplies the loss through `scale_loss`. After an overflow the scale shrinks by `backoff_factor`; after `growth_interval`
    batches without one it grows by `growth_factor`. `torch.amp.GradScaler` does the same with the same defaults.

    Args:
        initial_scale: Of the first loss, between the other two scales. Powers of two keep gradients exact.
        growth_factor: Above 1.
        backoff_factor: In (0, 1).
        growth_interval: Finite batches between two growths; at least 1.
        min_scale: The scale never falls below it. Positive.
        max_scale: The scale never rises above it.

    Reference:
        Micikevicius et al., "Mixed precision training", 2018, section 3.2. arXiv:1710.03740. `torch.amp.GradScaler`.
    """
    check_numbers("dynamic_loss_scale", GROWING, growth_factor=growth_factor)
    check_numbers("dynamic_loss_scale", SHRINKING, backoff_factor=backoff_factor)
    check_whole("dynamic_loss_scale", at_least(1), growth_interval=growth_interval)
    check_numbers("dynamic_loss_scale", POSITIVE, min_scale=min_scale, initial_scale=initial_scale)
    check_numbers("dynamic_loss_scale", POSITIVE_LIMIT, max_scale=max_scale)
    if not min_scale <= initial_scale <= max_scale:
        raise ValueError(
            "dynamic_loss_scale: scales must satisfy min_scale <= initial_scale <= max_scale, "
            f"got {min_scale}, {initial_scale} and {max_scale}"
        )

    def init(params: Tree) -> DynamicLossScaleState:
        none = scalar_like(params, 0, torch.int64)
        return DynamicLossScaleState(scalar_like(params, initial_scale, torch.float32), none, none.clone())

    def update(updates: Tree, state: DynamicLossScaleState, params: Tree = None, **extra: Any) -> tuple[Gated, DynamicLossScaleState]:
        leaves, structure = tree.flatten(updates)
        finite = first_bad_leaf(leaves, state.good_steps) < 0
        streak = torch.where(finite, state.good_steps + 1, 0)
        grows = streak >= growth_interval
        scale = torch.where(finite, torch.where(grows, state.scale * growth_factor, state.scale), state.scale * backoff_factor)
        new = DynamicLossScaleState(scale.clamp(min_scale, max_scale), torch.where(grows, 0, streak), state.skipped + ~finite)
        unscaled = leafwise.div(widen(leaves), state.scale)
        return Gated(tree.unflatten(structure, unscaled), finite, ~finite), new

    def scale_loss(loss: Tensor, state: DynamicLossScaleState) -> Tensor:
        return loss * state.scale.to(loss.dtype)

    return GradientTransform(init, update, "dynamic_loss_scale", scale_loss=scale_loss)
