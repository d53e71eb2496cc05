"""The gate that rejects a batch with NaN or infinity in it: `skip_nonfinite`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.transform import Gated, GradientTransform
from ..core.tree import Tree
from . import leafwise


class SkipNonfiniteState(NamedTuple):
    """State of `skip_nonfinite`; counts are 0-d int64."""

    consecutive: Tensor  # batches rejected in a row, up to now
    by_loss: Tensor  # batches rejected so far whose loss was not finite
    by_updates: Tensor  # batches rejected so far whose loss was finite, but an update was not
    leaf: Tensor  # index, in the order of tree.paths, of the first bad leaf of the latest rejected batch; -1 if there was none
    halt: Tensor  # 1 while `consecutive` has reached its limit

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """Counts by cause, the first bad leaf, and whether training should stop."""
        return {f"skip_nonfinite/{field}": getattr(self, field) for field in self._fields}


def skip_nonfinite(max_consecutive: int = 10) -> GradientTransform:
    """Reject a batch if any update, or the loss, is NaN or infinite.

    The parameters and the state of every later part stay as they are, bit for bit, however often it happens: it never gives in.
    Once `max_consecutive` batches in a row are bad, the metric `skip_nonfinite/halt` is 1 until a good one comes; the loop stops
    training on it. Stands first in a chain, before `accumulate`, so that a bad batch does not enter the window.

    Args:
        max_consecutive: Bad batches in a row after which training should stop; at least 1.

    Reference:
        optax 0.2.8 `apply_if_finite`, which lets bad updates through after `max_consecutive_errors` of them.
    """
    check_whole("skip_nonfinite", at_least(1), max_consecutive=max_consecutive)

    def init(params: Tree) -> SkipNonfiniteState:
        none = scalar_like(params, 0, torch.int64)
        return SkipNonfiniteState(none, none.clone(), none.clone(), none - 1, none.clone())

    def update(
        updates: Tree, state: SkipNonfiniteState, params: Tree = None, *, value: Tensor | None = None, **extra: Any
    ) -> tuple[Gated, SkipNonfiniteState]:
        leaf = first_bad_leaf(updates, state.leaf)
        bad_loss = (
            torch.zeros_like(leaf, dtype=torch.bool) if value is None else ~torch.isfinite(torch.as_tensor(value, device=leaf.device))
        )
        bad = bad_loss | (leaf >= 0)
        consecutive = torch.where(bad, state.consecutive + 1, 0)
        new = SkipNonfiniteState(
            consecutive=consecutive,
            by_loss=state.by_loss + bad_loss,
            by_updates=state.by_updates + (bad & ~bad_loss),
            leaf=torch.where(bad, leaf, state.leaf),
            halt=(consecutive >= max_consecutive).long(),
        )
        return Gated(updates, ~bad, bad), new

    return GradientTransform(init, update, "skip_nonfinite")


def first_bad_leaf(updates: Tree, like: Tensor) -> Tensor:
    """Index of the first leaf that holds NaN or infinity, -1 if none does; 0-d int64."""
    leaves = tree.leaves(updates)
    if not leaves:
        return torch.full_like(like, -1)
    bad = ~torch.isfinite(leafwise.largest(leaves))
    return torch.where(bad.any(), bad.long().argmax(), -1)
