"""Gates that reject a batch that is out of the ordinary: `skip_spikes`, `skip_large_updates`."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import LIMIT, NOT_NEGATIVE, POSITIVE_LIMIT, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from .history import History, empty_history, median_and_deviation, remember


@tree.node(static=("by",))
class SkipSpikesState:
    """State of `skip_spikes`."""

    accepted: History  # of the watched value
    limit: Tensor  # 0-d float64, largest value that the latest batch could have had
    consecutive: Tensor  # 0-d int64, batches rejected in a row, up to now
    skipped: Tensor  # 0-d int64, batches rejected so far
    by: str

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """Counts, and the limit in force."""
        return {f"skip_spikes/{self.by}/{field}": getattr(self, field) for field in ("limit", "consecutive", "skipped")}


def skip_spikes(
    by: Literal["loss", "grad_norm"] = "loss",
    *,
    threshold: float = 6.0,
    window: int = 128,
    warmup: int = 16,
    max_consecutive: int = 5,
    min_relative_deviation: float = 0.01,
) -> GradientTransform:
    """Reject a batch whose loss, or gradient norm, is far above the median of the latest accepted ones.

    A batch is a spike if `x > median + threshold deviation`, where the deviation is 1.4826 times the median absolute deviation. Both
    are over accepted batches only, so a spike does not raise the limit for the next. A value that is not finite is always a spike.

    Args:
        by: What is watched: the loss (`value`) or the joint norm of the updates.
        threshold: Allowed distance above the median, in deviations. Positive.
        window: Number of accepted values remembered.
        warmup: Accepted values before any batch is rejected; between 2 and `window`.
        max_consecutive: After so many rejections in a row the next finite batch is accepted, and counts: the level has changed. At least 1.
        min_relative_deviation: The deviation is at least this fraction of the median's magnitude, so that a flat stretch does not make
            every batch a spike. Not negative.

    Raises:
        TransformError: In `update`, by loss, if the step passes no `value`.

    Reference:
        Ours. The factor 1.4826 makes the deviation that of a normal distribution: Rousseeuw and Croux, "Alternatives to the median absolute
        deviation", 1993.
    """
    check_numbers("skip_spikes", POSITIVE_LIMIT, threshold=threshold)
    check_whole("skip_spikes", at_least(2), window=window, warmup=warmup)
    check_whole("skip_spikes", at_least(1), max_consecutive=max_consecutive)
    check_numbers("skip_spikes", NOT_NEGATIVE, min_relative_deviation=min_relative_deviation)
    if by not in ("loss", "grad_norm"):
        raise ValueError(f"skip_spikes: by must be 'loss' or 'grad_norm', got {by!r}")
    if warmup > window:
        raise ValueError(f"skip_spikes: warmup must be at most window = {window}, got {warmup}")

    def init(params: Tree) -> SkipSpikesState:
        none = scalar_like(params, 0, torch.int64)
        return SkipSpikesState(empty_history(params, window), scalar_like(params, float("inf")), none, none.clone(), by)

    def update(
        updates: Tree, state: SkipSpikesState, params: Tree = None, *, value: Tensor | float = float("nan"), **extra: Any
    ) -> tuple[Gated, SkipSpikesState]:
        watched = torch.zeros_like(state.limit) + (value if by == "loss" else tree.global_norm(updates).to(state.limit.device))
        median, deviation = median_and_deviation(state.accepted)
        deviation = torch.maximum(deviation, min_relative_deviation * median.abs())
        limit = torch.where(state.accepted.count >= warmup, median + threshold * deviation, float("inf"))
        patient = state.consecutive < max_consecutive
        spike = ~watched.isfinite() | ((watched > limit) & patient)
        new = SkipSpikesState(
            accepted=remember(state.accepted, watched, ~spike),
            limit=limit,
            consecutive=torch.where(spike, state.consecutive + 1, 0),
            skipped=state.skipped + spike,
            by=by,
        )
        return Gated(updates, ~spike, spike), new

    return GradientTransform(init, update, "skip_spikes", frozenset({"value"}) if by == "loss" else frozenset())


class SkipLargeUpdatesState(NamedTuple):
    """State of `skip_large_updates`."""

    skipped: Tensor  # 0-d int64, batches rejected so far
    norm_squared: Tensor  # 0-d float64, of the latest updates

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """Number of batches rejected."""
        return {"skip_large_updates/skipped": self.skipped}


def skip_large_updates(max_squared_norm: float) -> GradientTransform:
    """Reject a batch unless the squared norm of its updates is below a fixed bound; NaN is rejected too.

    Args:
        max_squared_norm: Bound on the squared joint norm, in the units of squared updates. Not negative.

    Reference:
        optax 0.2.8 `skip_large_updates`, there a condition for `MultiSteps`.
    """
    check_numbers("skip_large_updates", LIMIT, max_squared_norm=max_squared_norm)

    def init(params: Tree) -> SkipLargeUpdatesState:
        return SkipLargeUpdatesState(scalar_like(params, 0, torch.int64), scalar_like(params, 0.0))

    def update(updates: Tree, state: SkipLargeUpdatesState, params: Tree = None, **extra: Any) -> tuple[Gated, SkipLargeUpdatesState]:
        norm_squared = tree.global_norm(updates).to(state.norm_squared.device).square()
        small = norm_squared < max_squared_norm
        return Gated(updates, small, ~small), SkipLargeUpdatesState(state.skipped + ~small, norm_squared)

    return GradientTransform(init, update, "skip_large_updates")
