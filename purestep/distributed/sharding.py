"""Optimizer state in parts: each rank keeps, and updates, its rows of every leaf.

Rows are cut along the first axis into equal parts of `ceil(rows / world)`, the last ones shorter or empty, as `torch.chunk` and DTensor's
`Shard(0)` do. Leaves without an axis are kept whole. What an optimizer does to one element must not depend on others.
"""

from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.ranks import Ranks
from ..core.transform import GradientTransform, chain
from ..core.tree import Tree
from ..errors import TransformError
from .collective import gather_over

ELEMENTWISE = frozenset(
    """scale scale_by_learning_rate scale_by_schedule trace add_decayed_weights scale_by_adam scale_by_adamax scale_by_belief scale_by_lion
    scale_by_radam scale_by_rms scale_by_rss scale_by_yogi scale_by_amsgrad scale_by_sign""".split()
)
"""Names of transforms that treat every element on its own."""


@tree.node(static=("rows",))
class ShardedState:
    """State of an optimizer over the rows of one rank."""

    chain: Any  # the optimizer's own state
    rows: tuple[tuple[str, int], ...]  # path in `chain` of each leaf that is cut, and how many rows the whole has


def rows_of(size: int, ranks: Ranks) -> slice:
    """The rows of a rank, of `size` in all."""
    length = -(-size // ranks.world_size)
    return slice(min(ranks.rank * length, size), min((ranks.rank + 1) * length, size))


def with_sharded_end(optimizer: GradientTransform, ranks: Ranks) -> GradientTransform:
    """An optimizer whose last parts, all that work element by element, keep their state in parts.

    Raises:
        TransformError: If the very last part does not work element by element.
    """
    parts = optimizer.parts
    first = len(parts)
    while first and _is_elementwise(parts[first - 1]):
        first -= 1
    if first == len(parts):
        raise TransformError(
            f"{optimizer.name}: {parts[-1].name if parts else optimizer.name} needs more than single elements, so its state cannot be cut "
            f"among ranks; use shard_state='nothing', or one of the optimizers made of {', '.join(sorted(ELEMENTWISE))}"
        )
    ending = parts[first:]
    # the name "chain" is left out of the names of metrics
    inner = ending[0] if len(ending) == 1 else chain(*ending)
    return chain(*parts[:first], sharded(inner, ranks), name=optimizer.name)


def _is_elementwise(part: GradientTransform) -> bool:
    return all(map(_is_elementwise, part.parts)) if part.parts else part.name.removeprefix("masked_") in ELEMENTWISE


def sharded(inner: GradientTransform, ranks: Ranks) -> GradientTransform:
    """Run a transform on the rows of this rank, and gather what it makes of them; updates must be alike on all ranks before it."""

    def init(params: Tree) -> ShardedState:
        own = inner.init(_own_rows(params, ranks))
        meta = tree.to_device(params, "meta")
        doubled = tree.map(lambda leaf: torch.cat([leaf, leaf]) if leaf.ndim else leaf, meta)
        # what grows with the rows of the parameters has rows itself
        whole, double = inner.init(meta), inner.init(doubled)
        pairs = zip(tree.items(whole), tree.leaves(double), strict=True)
        return ShardedState(own, tuple((path, leaf.shape[0]) for (path, leaf), twice in pairs if leaf.shape != twice.shape))

    def update(updates: Tree, state: ShardedState, params: Tree = None, **extra: Any) -> tuple[Tree, ShardedState]:
        own_params = None if params is None else _own_rows(params, ranks)
        own, new = inner.update(_own_rows(updates, ranks), state.chain, own_params, **extra)
        return _gather_rows(own, updates, ranks), ShardedState(new, state.rows)

    return GradientTransform(init, update, inner.name, inner.needs, same_on_all_ranks=frozenset({"updates"}))


def gather_leaf(leaf: Tensor, rows: int, ranks: Ranks) -> Tensor:
    """A leaf out of the rows that all ranks hold."""
    return gather_over(_padded(leaf, rows, ranks), world_size=ranks.world_size).flatten(0, 1)[:rows]


def _own_rows(leaves: Tree, ranks: Ranks) -> Tree:
    return tree.map(lambda leaf: leaf[rows_of(leaf.shape[0], ranks)] if leaf.ndim else leaf, leaves)


def _gather_rows(own: Tree, like: Tree, ranks: Ranks) -> Tree:
    """Updates in full, by one gathering for each dtype."""
    parts, structure = tree.flatten(own)
    shapes = [leaf.shape for leaf in tree.leaves(like)]
    whole = list(parts)
    for dtype in dict.fromkeys(part.dtype for part in parts):
        members = [i for i, part in enumerate(parts) if part.dtype == dtype and part.ndim]
        if not members:
            continue
        padded = [_padded(parts[i], shapes[i][0], ranks) for i in members]
        table = gather_over(torch.cat([part.reshape(-1) for part in padded]), world_size=ranks.world_size)
        for i, part, columns in zip(members, padded, table.split([part.numel() for part in padded], 1), strict=True):
            whole[i] = columns.reshape(-1, *part.shape[1:])[: shapes[i][0]]
    return tree.unflatten(structure, whole)


def _padded(part: Tensor, rows: int, ranks: Ranks) -> Tensor:
    """The rows of a rank, filled up to the length that all ranks have."""
    missing = -(-rows // ranks.world_size) - part.shape[0]
    return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part
