"""Gradient accumulation: the gate that waits until a window of batches is full, `accumulate`."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.schedule import scalar_like
from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen, zeros_of_moments

LastWindow = Literal["partial", "carry", "drop"]


@tree.node(static=("last",))
class AccumulateState:
    """State of `accumulate`: sums over the open window, and counts."""

    total: Tree  # sum of updates times denominators; float32 or wider
    weight: Tensor  # 0-d float64, sum of denominators
    loss_total: Tensor  # 0-d float64, sum of losses times denominators
    loss: Tensor  # 0-d float64, mean loss over the latest complete window; NaN before, and if the step passes no loss
    micro_step: Tensor  # 0-d int64, batches in the open window
    windows: Tensor  # 0-d int64, windows emitted so far
    closing: Tensor  # 0-d bool: the epoch has ended, the next call emits the open window
    last: LastWindow

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The mean loss over the latest complete window."""
        return {"update/loss": self.loss}

    def end_epoch(self) -> "AccumulateState":
        """The state after an epoch's end: an incomplete window is dropped, carried on, or will be emitted by the next call.

        A call with zero updates and denominator 0 emits it at once, and counts as no batch.
        """
        if self.last == "carry":
            return self
        if self.last == "partial":
            return self._with(closing=self.micro_step > 0)
        empty = torch.zeros_like
        return self._with(
            total=tree.map(empty, self.total),
            weight=empty(self.weight),
            loss_total=empty(self.loss_total),
            micro_step=empty(self.micro_step),
        )

    def _with(self, **changes: Any) -> "AccumulateState":
        fields = ("total", "weight", "loss_total", "loss", "micro_step", "windows", "closing", "last")
        return AccumulateState(**{field: changes.get(field, getattr(self, field)) for field in fields})


def accumulate(
    every: int | Callable[[Tensor], Tensor | int], *, last: LastWindow = "partial", accumulator_dtype: torch.dtype | None = None
) -> GradientTransform:
    """Wait for `every` batches, then hand on the mean of their updates.

        total <- total + denominator u;  weight <- weight + denominator;  at the window's end  u <- total / weight

    `denominator` is what the loss was divided by (tokens, atoms, labels), as the step passes it; 1 if it passes none. So the mean is
    that of the whole window, however ragged its batches are. While it waits, everything after it in the chain, counts included,
    stays as it is. A window whose weight is 0 is let go without an update.

    Args:
        every: Batches in a window, at least 1; or a function of the number of windows emitted so far.
        last: What becomes of a window that the epoch's end leaves incomplete: `"partial"` emits the mean over what is there,
            `"carry"` goes on filling it in the next epoch, `"drop"` empties it.
        accumulator_dtype: Of the sums; the gradients' own, but at least float32, by default.
    """
    if isinstance(every, int) and every < 1:
        raise ValueError(f"accumulate: every must be at least 1, got {every}")
    if last not in ("partial", "carry", "drop"):
        raise ValueError(f"accumulate: last must be 'partial', 'carry' or 'drop', got {last!r}")

    def init(params: Tree) -> AccumulateState:
        nothing, none = scalar_like(params, 0.0), scalar_like(params, 0, torch.int64)
        closing = scalar_like(params, False, torch.bool)
        total = zeros_of_moments(params, accumulator_dtype)
        return AccumulateState(total, nothing, nothing.clone(), nothing + float("nan"), none, none.clone(), closing, last)

    def update(
        updates: Tree,
        state: AccumulateState,
        params: Tree = None,
        *,
        value: Tensor | None = None,
        denominator: Tensor | float | None = None,
        **extra: Any,
    ) -> tuple[Gated, AccumulateState]:
        leaves, structure = tree.flatten(updates)
        weight = torch.ones_like(state.weight) if denominator is None else torch.zeros_like(state.weight) + denominator
        loss = torch.full_like(state.loss, float("nan")) if value is None else torch.zeros_like(state.loss) + value
        old_sums = [*tree.leaves(state.total), state.weight, state.loss_total]
        own = [*leafwise.mul(leafwise.cast(widen(leaves), [t.dtype for t in old_sums[:-2]]), weight), weight, weight * loss]
        sums = leafwise.add(old_sums, own)
        counted = torch.where(weight == 0, 0, 1) if last == "partial" else 1
        micro = state.micro_step + 1
        full = micro >= (every(state.windows) if callable(every) else every)
        ready = full
        if last == "partial":
            # The batch that comes after the epoch's end opens a window of its own while the old one leaves.
            sums_out = [torch.where(state.closing, old, new) for old, new in zip(old_sums, sums, strict=True)]
            ready = state.closing | full
            left = [torch.where(state.closing, mine, torch.where(full, 0, new)) for mine, new in zip(own, sums, strict=True)]
            micro = torch.where(state.closing, counted, torch.where(full, 0, micro))
        else:
            sums_out = sums
            left = [torch.where(full, 0, new) for new in sums]
            micro = torch.where(full, 0, micro)
        *totals, total_weight, loss_total = sums_out
        emits = ready & (total_weight > 0)
        safe = torch.where(emits, total_weight, 1.0)
        new = AccumulateState(
            total=tree.unflatten(structure, left[:-2]),
            weight=left[-2],
            loss_total=left[-1],
            loss=torch.where(emits, loss_total / safe, state.loss),
            micro_step=micro,
            windows=state.windows + emits,
            closing=torch.zeros_like(state.closing),
            last=last,
        )
        return Gated(tree.unflatten(structure, leafwise.div(totals, safe)), emits, torch.zeros_like(emits)), new

    return GradientTransform(init, update, "accumulate")
