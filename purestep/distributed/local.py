"""What each rank has of its own in a state that is else the same everywhere: the sums of an open accumulation window.

In a checkpoint such a leaf gets a first axis over ranks. A world of the same size gets its own leaves back, bit for bit; in another
world rank 0 gets the sum and the others begin with zeros, which is the same window.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.ranks import Ranks
from ..core.transform import children
from ..transforms.accumulation import AccumulateState


def local_prefixes(node: Any, path: str = "") -> list[str]:
    """Paths of the subtrees that differ by rank."""
    if isinstance(node, AccumulateState):
        return [f"{path}.total".lstrip(".")]
    return [prefix for key, child in children(node) if not isinstance(child, Tensor) for prefix in local_prefixes(child, f"{path}.{key}")]


def gather_local(state: Any, ranks: Ranks) -> Any:
    """The state with a first axis over ranks in every local leaf; the same on every rank. All ranks call it."""

    def gathered(leaf: Tensor) -> Tensor:
        own = torch.zeros(ranks.world_size, *leaf.shape, dtype=leaf.dtype, device=leaf.device)
        own[ranks.rank] = leaf
        return ranks.sum(own.reshape(-1)).view(own.shape)

    return _map_local(gathered, state)


def with_rank_axis(state: Any, world_size: int) -> Any:
    """A state of the form that `gather_local` gives, for loading into."""
    return _map_local(lambda leaf: torch.zeros(world_size, *leaf.shape, dtype=leaf.dtype, device=leaf.device), state)


def scatter_local(state: Any, ranks: Ranks, world_size: int) -> Any:
    """The inverse of `gather_local`, on a world that may differ from the one, of `world_size` ranks, that gathered."""

    def own(leaf: Tensor) -> Tensor:
        if ranks.world_size == world_size:
            return leaf[ranks.rank].clone()
        return leaf.sum(0) if ranks.rank == 0 else torch.zeros_like(leaf[0])

    return _map_local(own, state)


def _map_local(fn: Callable[[Tensor], Tensor], state: Any) -> Any:
    prefixes = tuple(f"{prefix}." for prefix in local_prefixes(state))
    if not prefixes:
        return state
    return tree.map_with_path(lambda path, leaf: fn(leaf) if path.startswith(prefixes) else leaf, state)
