"""Bound the updates by a number: element by element, or by their joint norm."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import LIMIT, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise


class ClipState(NamedTuple):
    """State of `clip`."""

    max_delta: Hyperparam


def clip(max_delta: ScalarOrSchedule) -> GradientTransform:
    """Bound each element: `u <- min(max(u, -max_delta), max_delta)`; NaN stays NaN. torch calls it `clip_grad_value_`.

    Args:
        max_delta: Largest magnitude, in the units of the updates; a number or a schedule. Not negative.

    Reference:
        optax 0.2.8 `clip`; `torch.nn.utils.clip_grad_value_`.
    """
    check_schedulable("clip", LIMIT, max_delta=max_delta)

    def init(params: Tree) -> ClipState:
        return ClipState(init_hyperparam(max_delta, params))

    def update(updates: Tree, state: ClipState, params: Tree = None, **extra: Any) -> tuple[Tree, ClipState]:
        bound = next_hyperparam(max_delta, state.max_delta)

        def clipped(u: Tensor) -> Tensor:
            limit = bound.value.to(u.dtype)
            return torch.minimum(torch.maximum(u, -limit), limit)

        return tree.map(clipped, updates), ClipState(bound)

    return GradientTransform(init, update, "clip")


class ClipByGlobalNormState(NamedTuple):
    """State of `clip_by_global_norm`."""

    max_norm: Hyperparam
    norm: Tensor  # 0-d float64, of the latest updates before clipping
    factor: Tensor  # 0-d float64, what they were multiplied by

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The norm before clipping and the factor applied."""
        return {"update/grad_norm": self.norm, "clip_factor": self.factor}


def clip_by_global_norm(max_norm: ScalarOrSchedule, *, eps: float = 0.0) -> GradientTransform:
    """Shrink the updates so that their joint Euclidean norm is at most `max_norm`.

    All leaves are scaled by one factor, so the direction is kept: `u <- u min(1, max_norm / (|u| + eps))`. The norm is summed in
    float64: gradients of 1e20 do not overflow it. Zero updates stay zero, also where `max_norm` is 0.

    Args:
        max_norm: Largest allowed norm, in the units of the updates; a number or a schedule. Not negative.
        eps: Added to the norm. Not negative. 1e-6 gives `torch.nn.utils.clip_grad_norm_`, bit for bit in the formula; optax and the paper
            have 0.

    Reference:
        Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, Algorithm 1. arXiv:1211.5063
    """
    check_schedulable("clip_by_global_norm", LIMIT, max_norm=max_norm)
    check_numbers("clip_by_global_norm", NOT_NEGATIVE, eps=eps)

    def init(params: Tree) -> ClipByGlobalNormState:
        return ClipByGlobalNormState(init_hyperparam(max_norm, params), scalar_like(params, 0.0), scalar_like(params, 1.0))

    def update(updates: Tree, state: ClipByGlobalNormState, params: Tree = None, **extra: Any) -> tuple[Tree, ClipByGlobalNormState]:
        limit = next_hyperparam(max_norm, state.max_norm)
        leaves, structure = tree.flatten(updates)
        norm = tree.global_norm(leaves).to(limit.value.device)
        factor = clip_factor(norm + eps, limit.value)
        return tree.unflatten(structure, leafwise.mul(leaves, factor)), ClipByGlobalNormState(limit, norm, factor)

    return GradientTransform(init, update, "clip_by_global_norm")


def clip_factor(norm: Tensor, limit: Tensor) -> Tensor:
    """`min(1, limit / norm)`, 1 where the norm is 0 or NaN."""
    too_long = norm > limit
    return torch.where(too_long, limit / torch.where(too_long, norm, 1.0), 1.0)
