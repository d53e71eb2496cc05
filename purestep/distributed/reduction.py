"""Summing gradients over ranks, as a part of the chain: `sum_over_ranks`, and what keeps gates in step before it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.idle import Idle, busy_flags
from ..core.ranks import Ranks
from ..core.schedule import scalar_like
from ..core.transform import EmptyState, GradientTransform
from ..core.tree import Tree
from .parts import Cut, real


def write_table(cuts: Mapping[str, Cut]) -> str:
    """Which leaves of a state are parts, as text that belongs to the state's structure: a line `path axis size` for each."""
    return "\n".join(f"{path} {cut.axis} {cut.size}" for path, cut in sorted(cuts.items()))


def read_table(table: str) -> dict[str, Cut]:
    """The inverse of `write_table`."""
    rows = (line.rsplit(" ", 2) for line in table.splitlines())
    return {path: Cut(int(axis), int(size)) for path, axis, size in rows}


@tree.node(static=("parts",))
class SumOverRanksState:
    """State of `sum_over_ranks`."""

    norm: Tensor  # 0-d float64, of the latest sum
    idle: Tensor  # 1-d bool: which leaves no rank's share of the latest update reaches
    parts: str  # of the state of training: see `write_table`

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The norm of the gradient of the whole update."""
        return {"update/grad_norm": self.norm}


def sum_over_ranks(ranks: Ranks) -> GradientTransform:
    """Add the updates of all ranks; every rank gets the sum, with the same bits.

    Leaves of one dtype travel as one flat vector, those narrower than float32 as float32. So an update costs one collective for each
    dtype. In the first of them travels also, in a number for each leaf, whether this rank's share of the update reaches it at all.
    `data_parallel` puts this part where it belongs.
    """

    def update(
        updates: Tree, state: SumOverRanksState, params: Tree = None, *, idle: Idle | None = None, **extra: Any
    ) -> tuple[Tree, SumOverRanksState]:
        if idle is None or not tree.leaves(updates):
            summed, kept = ranks.sum_tree(updates), state.idle
        else:
            summed, busy = ranks.sum_tree((updates, busy_flags(idle, updates, _travels_as(tree.leaves(updates)[0]))))
            kept = busy == 0
        return summed, SumOverRanksState(tree.global_norm(summed).to(state.norm.device), kept, state.parts)

    return GradientTransform(first_sum, update, "sum_over_ranks", same_on_all_ranks=frozenset({"updates"}))


def first_sum(params: Tree) -> SumOverRanksState:
    """The state before the first sum."""
    leaves = tree.leaves(params)
    idle = torch.zeros(len(leaves), dtype=torch.bool, device=leaves[0].device if leaves else None)
    return SumOverRanksState(scalar_like(params, 0.0), idle, "")


def _travels_as(leaf: Tensor) -> torch.dtype:
    return torch.promote_types(real(leaf).dtype, torch.float32)


def share_nonfinite(ranks: Ranks) -> GradientTransform:
    """Where a leaf of the updates is not finite on one rank, make it NaN on all.

    Gates that watch for such values and stand before `sum_over_ranks` then come to the same verdict and the same state on every rank.
    Costs a sum of one number for each leaf.
    """

    def update(updates: Tree, state: EmptyState, params: Tree = None, **extra: Any) -> tuple[Tree, EmptyState]:
        leaves, structure = tree.flatten(updates)
        if not leaves:
            return updates, state
        bad = torch.stack([~torch.isfinite(leaf).all() for leaf in leaves]).to(torch.int64)
        anywhere = ranks.sum(bad) > 0
        shared = [torch.where(anywhere[i], torch.full_like(leaf, float("nan")), leaf) for i, leaf in enumerate(leaves)]
        return tree.unflatten(structure, shared), state

    return GradientTransform(lambda params: EmptyState(), update, "share_nonfinite")
