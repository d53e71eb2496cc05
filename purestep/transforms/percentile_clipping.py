"""Bound the norm of the updates by a quantile of its recent values: `clip_by_percentile`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import Range, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .clipping import clip_factor
from .history import History, empty_history, quantile, remember

_PERCENT = Range("lie in (0, 100]", lambda x: 0 < x <= 100)


class ClipByPercentileState(NamedTuple):
    """State of `clip_by_percentile`."""

    norms: History
    norm: Tensor  # 0-d float64, of the latest updates before clipping
    factor: Tensor  # 0-d float64, what they were multiplied by

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The norm before clipping and the factor applied."""
        return {"update/grad_norm": self.norm, "clip_factor": self.factor}


def clip_by_percentile(percentile: float = 90.0, window: int = 100, warmup: int = 10) -> GradientTransform:
    """Shrink the updates to the given percentile of the norms of the latest `window` updates.

    The norm before clipping enters the window afterwards, so the bound follows a slow change of scale; norms that are not finite do
    not enter.

    Args:
        percentile: In (0, 100].
        window: Number of norms remembered; at least 1.
        warmup: Number of norms before anything is clipped; from 1 to `window`.

    Reference:
        Seetharaman et al., "AutoClip: adaptive gradient clipping for source separation networks", 2020. arXiv:2007.14469
        (there the window is the whole past).
    """
    check_numbers("clip_by_percentile", _PERCENT, percentile=percentile)
    check_whole("clip_by_percentile", at_least(1), window=window, warmup=warmup)
    if warmup > window:
        raise ValueError(f"clip_by_percentile: warmup must be at most window = {window}, got {warmup}")

    def init(params: Tree) -> ClipByPercentileState:
        return ClipByPercentileState(empty_history(params, window), scalar_like(params, 0.0), scalar_like(params, 1.0))

    def update(updates: Tree, state: ClipByPercentileState, params: Tree = None, **extra: Any) -> tuple[Tree, ClipByPercentileState]:
        leaves, structure = tree.flatten(updates)
        norm = tree.global_norm(leaves).to(state.norm.device)
        limit = torch.where(state.norms.count >= warmup, quantile(state.norms, percentile / 100), float("inf"))
        factor = clip_factor(norm, limit)
        new = ClipByPercentileState(remember(state.norms, norm, norm.isfinite()), norm, factor)
        return tree.unflatten(structure, leafwise.mul(leaves, factor)), new

    return GradientTransform(init, update, "clip_by_percentile")
