"""Gradient accumulation: the gate that waits until a window of batches is full, `accumulate`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.loss import divide
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from . import leafwise
from .leafwise import Leaves
from .moments import zeros_of_moments

LastWindow = Literal["partial", "carry", "drop"]
Reduction = Literal["mean", "sum"]


@tree.node(static=("last", "every"))
class AccumulateState:
    """State of `accumulate`: sums over the open window, and counts."""

    total: Tree  # sum of updates times denominators; float32 or wider
    weight: Tensor  # 0-d float64, sum of denominators
    loss_total: Tensor  # 0-d float64, sum of losses times denominators
    loss: Tensor  # 0-d float64, mean loss over the latest complete window; 0 before, and if the step passes no loss
    micro_step: Tensor  # 0-d int64, batches in the open window
    windows: Tensor  # 0-d int64, windows emitted so far
    closing: Tensor  # 0-d bool: the epoch has ended, the next call emits the open window
    last: LastWindow
    every: int | Callable[[Tensor], Tensor | int]

    def waits(self) -> bool:
        """Whether the next batch will leave the window open; looks at the device, so it is for the host to ask between batches."""
        every = int(self.every(self.windows)) if callable(self.every) else self.every
        return not bool(self.closing) and int(self.micro_step) + 1 < every

    @property
    def open_loss(self) -> Tensor:
        """The mean loss over the open window; 0 if it is empty."""
        return divide(self.loss_total, self.weight)

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
            return dataclasses.replace(self, closing=self.micro_step > 0)
        empty = torch.zeros_like
        return dataclasses.replace(
            self,
            total=tree.map(empty, self.total),
            weight=empty(self.weight),
            loss_total=empty(self.loss_total),
            micro_step=empty(self.micro_step),
        )


def accumulate(
    every: int | Callable[[Tensor], Tensor | int],
    *,
    last: LastWindow = "partial",
    reduction: Reduction = "mean",
    accumulator_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Wait for `every` batches, then hand on the mean of their updates.

        total <- total + denominator u;  weight <- weight + denominator;  at the window's end  u <- total / weight

    `denominator` is what the loss was divided by (tokens, atoms, labels), as the step passes it; 1 if it passes none. So the mean is
    that of the whole window, however ragged its batches are. While it waits, everything after it in the chain, counts included,
    stays as it is. A window whose weight is 0 is let go without an update.

    Parts after it see the window's updates with the `value` of its last batch.

    Args:
        every: Batches in a window, at least 1; or a function of the number of windows emitted so far.
        last: What becomes of a window that the epoch's end leaves incomplete: `"partial"` emits the mean over what is there, `"carry"` goes
            on filling it in the next epoch, `"drop"` empties it.
        reduction: "sum" hands on the plain sum of the window's updates, whatever their denominators.
        accumulator_dtype: Of the sums; the gradients' own, but at least float32, by default.

    Raises:
        ValueError: If an argument is out of its range.

    Reference:
        optax 0.2.8 `MultiSteps(every_k_schedule)`, which weighs all batches alike; the denominators, `last` and `"sum"` are ours.
    """
    if not callable(every):
        check_whole("accumulate", at_least(1), every=every)
    if last not in ("partial", "carry", "drop"):
        raise ValueError(f"accumulate: last must be 'partial', 'carry' or 'drop', got {last!r}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"accumulate: reduction must be 'mean' or 'sum', got {reduction!r}")

    def init(params: Tree) -> AccumulateState:
        nothing, none = scalar_like(params, 0.0), scalar_like(params, 0, torch.int64)
        closing = scalar_like(params, False, torch.bool)
        total = zeros_of_moments(params, accumulator_dtype)
        return AccumulateState(total, nothing, nothing.clone(), nothing.clone(), none, none.clone(), closing, last, every)

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
        old = [*tree.leaves(state.total), state.weight, state.loss_total]
        counted = denominator if reduction == "mean" or denominator is None else (torch.as_tensor(denominator) != 0).double()
        own = batch_sums(leaves, old, value, counted)
        sums = leafwise.add(old, own)
        full = state.micro_step + 1 >= (every(state.windows) if callable(every) else every)
        kept, micro_step = [torch.where(full, 0, s) for s in sums], torch.where(full, 0, state.micro_step + 1)
        if last == "partial":
            # The old window leaves as it is; the batch that comes after the epoch's end opens one of its own.
            sums = [torch.where(state.closing, before, after) for before, after in zip(old, sums, strict=True)]
            kept = [torch.where(state.closing, mine, rest) for mine, rest in zip(own, kept, strict=True)]
            micro_step = torch.where(state.closing, (own[-2] != 0).long(), micro_step)
            full = full | state.closing
        *totals, weight, loss_total = sums
        emits = full & (weight > 0)
        weight = torch.where(emits, weight, 1.0)
        out = totals if reduction == "sum" else leafwise.div(totals, weight)
        new = AccumulateState(
            total=tree.unflatten(structure, kept[:-2]),
            weight=kept[-2],
            loss_total=kept[-1],
            loss=torch.where(emits, loss_total / weight, state.loss),
            micro_step=micro_step,
            windows=state.windows + emits,
            closing=torch.zeros_like(state.closing),
            last=last,
            every=every,
        )
        return Gated(tree.unflatten(structure, out), emits, torch.zeros_like(emits)), new

    return GradientTransform(init, update, "accumulate", same_on_all_ranks=frozenset({"verdict"}))


def batch_sums(leaves: Leaves, like: Leaves, value: Tensor | float | None, denominator: Tensor | float | None) -> Leaves:
    """What one batch adds to the sums: updates times denominator, the denominator, and loss times denominator.

    Args:
        leaves: The updates.
        like: The sums so far, whose dtypes and device hold.
        value: The loss; 0 if the step passes none.
        denominator: What the loss was divided by; 1 if the step passes none.
    """
    nothing = torch.zeros_like(like[-1])
    weight = nothing + (1.0 if denominator is None else denominator)
    loss = nothing if value is None else nothing + value
    wide = leafwise.cast(leaves, [total.dtype for total in like[:-2]])
    return [*leafwise.mul(wide, weight), weight, weight * loss]
