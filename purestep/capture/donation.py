"""What a state must be like before its memory is given away, and what its successor remembers."""

import dataclasses
from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..errors import CaptureError
from .graph import Graph, Run


def check_own_memory(state: Any) -> None:
    """Refuse a state two of whose leaves share memory: written in place, one would change the other.

    Raises:
        CaptureError: Naming the leaves.
    """
    origin: Origin | None = getattr(state, "_origin", None)
    if origin is not None and origin.is_of(state):
        return
    seen: dict[int, str] = {}
    for path, leaf in tree.items(state):
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            continue
        if any(stride == 0 and size > 1 for size, stride in zip(leaf.shape, leaf.stride(), strict=True)):
            raise CaptureError(f"donate=True: {path} is expanded, its elements share memory; pass ps.tree.clone(state)")
        other = seen.setdefault(_memory(leaf), path)
        if other != path:
            raise CaptureError(f"donate=True: {path} and {other} share memory; pass ps.tree.clone(state), in which each has its own")


class Call(NamedTuple):
    """What decides, beside the state, which graph a call runs."""

    owner: Any
    step: Any
    around: tuple
    """The surroundings."""
    spec: Any
    """Structure of the arguments after the state."""
    kinds: list[tuple]
    """Kinds of their leaves."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """What a state that came out of a donating step remembers, so that the next call need not look at each leaf again."""

    call: Call
    leaves: list[Tensor]
    """Those of the state: the same tensors before and after."""
    graph: Graph
    buffers: list[Tensor]
    """Those of which the leaves are views, with flat storage."""
    places: list[int]
    """Where each leaf begins in memory: `x.data = y` moves one, and leaves it the same object."""
    memory: frozenset[int]
    """What the leaves live in."""
    contents: "Contents | None"
    """Of the state; None if it has containers of unknown kinds."""
    run: Run
    """The graph, or what replays it on these leaves."""

    def fits(self, call: Call, state: Any) -> bool:
        """Whether this call runs the same graph on the same leaves."""
        return self.graph.guard is None and self.graph.condition is None and self.call == call and self.is_of(state)

    def is_of(self, state: Any) -> bool:
        """Whether a state holds for certain what it was returned with, where it was returned."""
        return self.contents is not None and self.contents.are_those_of(state) and self._stayed()

    def holds(self, leaves: list[Any], graph: Graph) -> bool:
        """Whether these leaves live in the buffers that another graph wants."""
        groups = self.graph.flat.groups if self.graph.flat is not None else None
        return graph.flat is not None and graph.flat.groups == groups and all(map(is_, self.leaves, leaves)) and self._stayed()

    def _stayed(self) -> bool:
        return self.places == _places(self.leaves)

    def apart(self, others: list[Any]) -> list[Any]:
        """The leaves of the other arguments, copied where they share memory with the state: kernels may write before others read."""
        return [_copied(x) if isinstance(x, Tensor) and _memory(x) in self.memory else x for x in others]

    def __reduce__(self) -> tuple:
        return _nothing, ()  # a copy of a state, or one read from a pickle, comes from nowhere


def _nothing() -> None:
    return None


def _places(leaves: list[Tensor]) -> list[int]:
    return [*map(Tensor.data_ptr, leaves)]


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _copied(x: Tensor) -> Tensor:
    """A copy with the same strides, which a graph relies on, in memory as large."""
    return x.new_empty(0).set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())


def give(state: Any, own: list[Any], call: Call, graph: Graph) -> tuple[Any, Origin]:
    """Get a state ready whose memory a graph will overwrite: its own memory, or, with flat storage, buffers.

    The state is copied into buffers, unless another graph with the same buffers made it.

    Args:
        own: The leaves of the state.
    """
    buffers: list[Tensor] = []
    before: Origin | None = getattr(state, "_origin", None)
    if graph.flat is None:
        check_own_memory(state)
    elif before is not None and before.holds(own, graph):
        buffers = before.buffers
    else:
        buffers, own = graph.flat.pack(own)
        # a copy of the rest too: its leaves may share memory
        held = {i for group in graph.flat.groups for i in group}
        own = [leaf if i in held else leaf.clone() for i, leaf in enumerate(own)]
        state = tree.unflatten(tree.structure(state), own)
    memory = frozenset(map(_memory, own))
    _check_constants(state, own, graph, memory)
    run = graph.run if graph.replayed_at is None else graph.replayed_at(own)
    return state, Origin(call, own, graph, buffers, _places(own), memory, _contents(state), run)


def _check_constants(state: Any, own: list[Tensor], graph: Graph, memory: frozenset[int]) -> None:
    """Refuse to overwrite what the step reads from outside.

    Raises:
        CaptureError: Naming the leaf of the state.
    """
    shared = memory & set(map(_memory, graph.constants))
    for path, leaf in zip(tree.paths(state), own, strict=True) if shared else ():
        if _memory(leaf) in shared and leaf.numel() > 0:
            raise CaptureError(
                f"donate=True: the step closes over a tensor in the memory of {path or 'the state'}, which each call overwrites; "
                "let it close over a copy, x.clone(), or pass ps.tree.clone(state)"
            )


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Contents:
    """What is in the containers of a state that somebody might write to, and in itself; its other containers are immutable."""

    fields: list[Any]
    dicts: list[dict]
    lists: list[list]
    sizes: list[int]
    held: list[Any]

    def are_those_of(self, state: Any) -> bool:
        """Whether a state has the same containers, with the very same objects at the same places."""
        return (
            all(map(is_, self.fields, state.__dict__.values()))
            and [*map(len, self.dicts), *map(len, self.lists)] == self.sizes
            and all(map(is_, self.held, _held(self.dicts, self.lists)))
        )


def _contents(state: Any) -> Contents | None:
    nodes = tree.nodes(state)
    if not _is_frozen(state) or not all(type(x) in (dict, list) or isinstance(x, Tensor | tuple | None) or _is_frozen(x) for x in nodes):
        return None
    dicts, lists = [x for x in nodes if type(x) is dict], [x for x in nodes if type(x) is list]
    fields = [getattr(state, field.name) for field in dataclasses.fields(state)]
    return Contents(fields, dicts, lists, [*map(len, dicts), *map(len, lists)], list(_held(dicts, lists)))


def _held(dicts: list[dict], lists: list[list]) -> Iterator[Any]:
    return chain(chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists))


def _is_frozen(x: Any) -> bool:
    return dataclasses.is_dataclass(x) and getattr(type(x), "__dataclass_params__").frozen and hasattr(x, "__dict__")  # noqa: B009


def remember(state: Any, origin: Origin) -> None:
    """Note on a state where it comes from; a plain dict or tuple cannot bear the note, and is looked at anew."""
    if hasattr(state, "__dict__"):
        object.__setattr__(state, "_origin", origin)


def successor(state: Any) -> Any:
    """A state of the same tensors, which now hold the new values, for a state that is refused from now on."""
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    return new
