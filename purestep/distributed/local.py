"""What each rank has of its own in a state that is else the same everywhere: open accumulation windows, and parts of sharded state.

A saved state holds the sum over ranks in their place, which is the same window for one process or for another number of ranks, who put
it on rank 0. Beside it lie the sums of every rank, so that a world of the same size gets its own back, bit for bit. Sharded leaves are
saved whole.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core import tree
from ..core.ranks import Ranks
from ..core.transform import children
from ..transforms.accumulation import AccumulateState
from .collective import gather_over
from .parts import Cut, gather_parts, whole_on_meta
from .reduction import SumOverRanksState, read_table

Node = TypeVar("Node")


def cuts_of(state: Any) -> dict[str, Cut]:
    """By path, the leaves of which this state holds a part, and where they are cut."""
    return next((read_table(node.parts) for _, node in _nodes(state, SumOverRanksState)), {})


def is_alike(state: Any) -> Callable[[str], bool]:
    """Whether the leaf at a path is the same on all ranks."""
    windows = tuple(f"{path}.total." for path in _windows(state))
    cuts = cuts_of(state)
    return lambda path: path not in cuts and not path.startswith(windows)


def has_own_windows(state: Any) -> bool:
    """Whether each rank has an accumulation window of its own."""
    return bool(_windows(state))


def gather_shards(state: Any, ranks: Ranks) -> Any:
    """The state with all leaves whole on rank 0; the others keep their parts. All ranks call it."""
    cuts = cuts_of(state)

    def whole(path: str, leaf: Any) -> Any:
        gathered = gather_parts([leaf], [cuts[path]], ranks)[0] if path in cuts else leaf
        return gathered if ranks.rank == 0 else leaf

    return tree.map_with_path(whole, state) if cuts else state


def room_for_shards(state: Any) -> Any:
    """The state with whole leaves that take no memory, on the meta device, in the place of parts."""
    cuts = cuts_of(state)
    return tree.map_with_path(lambda path, x: whole_on_meta(x, cuts[path]) if path in cuts else x, state) if cuts else state


def gather_windows(state: Any, ranks: Ranks) -> Any:
    """A state to save, the same on every rank; all ranks call it. Where no window is open it is the state as it is."""
    windows = _windows(state)
    if ranks.world_size == 1 or not any(bool(window.micro_step > 0) for window in windows.values()):
        return state
    gather = functools.partial(gather_over, world_size=ranks.world_size)
    by_rank = {path: tree.map(gather, window.total) for path, window in windows.items()}
    summed = {path: tree.map(lambda leaf: leaf.sum(0), totals) for path, totals in by_rank.items()}
    return _with_extra(_with_totals(state, summed), ranks, by_rank)


def room_for_windows(state: Any, ranks: Ranks) -> tuple[Any, str]:
    """A state to load into, with room for the windows of each rank, NaN until something is loaded; and the pattern of their paths."""
    windows = _windows(state)
    if ranks.world_size == 1 or not windows:
        return state, ""
    empty = {path: tree.map(lambda leaf: _nan(leaf, ranks.world_size), window.total) for path, window in windows.items()}
    return _with_extra(state, ranks, empty), f"hook_state.{_name(ranks)}.*"


def scatter_windows(state: Any, ranks: Ranks) -> Any:
    """The state of one rank, out of what was loaded into `room_for_windows`."""
    windows = _windows(state)
    if ranks.world_size == 1 or not windows:
        return state
    by_rank = state.hook_state[_name(ranks)]
    own = {}
    for path, window in windows.items():
        saved = by_rank[_key(path)]
        if any(bool(leaf.isnan().any()) for leaf in tree.leaves(saved)):  # a closed window, or one of another world
            own[path] = window.total if ranks.rank == 0 else tree.zeros_like(window.total)
        else:
            own[path] = tree.map(lambda leaf: leaf[ranks.rank].clone(), saved)
    rest = {name: kept for name, kept in state.hook_state.items() if name != _name(ranks)}
    return _with_totals(dataclasses.replace(state, hook_state=rest), own)


def _windows(state: Any) -> dict[str, AccumulateState]:
    """Windows of which each rank has its own: those in parts are of all ranks already."""
    cuts = cuts_of(state)
    found = dict(_nodes(state, AccumulateState))
    return {path: window for path, window in found.items() if not any(cut.startswith(f"{path}.total.") for cut in cuts)}


def _nodes(node: Any, kind: type[Node], path: str = "") -> Iterator[tuple[str, Node]]:
    if isinstance(node, kind):
        yield path, node
        return
    for key, child in children(node):
        if not isinstance(child, Tensor):
            yield from _nodes(child, kind, f"{path}.{key}" if path else key)


def _with_totals(state: Any, totals: dict[str, Any]) -> Any:
    flat = {f"{path}.total.{inner}": leaf for path, total in totals.items() for inner, leaf in tree.items(total)}
    return tree.map_with_path(lambda path, leaf: flat.get(path, leaf), state)


def _with_extra(state: Any, ranks: Ranks, by_rank: dict[str, Any]) -> Any:
    extra = {_key(path): totals for path, totals in by_rank.items()}
    return dataclasses.replace(state, hook_state={**state.hook_state, _name(ranks): extra})


def _name(ranks: Ranks) -> str:
    return f"windows_of_{ranks.world_size}_ranks"


def _key(path: str) -> str:
    return path.replace(".", "/")


def _nan(leaf: Tensor, world_size: int) -> Tensor:
    return torch.full((world_size, *leaf.shape), float("nan"), dtype=leaf.dtype, device=leaf.device)
