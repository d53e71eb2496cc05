"""What a state must be like before its memory is given away, and what its successor remembers."""

import dataclasses
from operator import is_
from typing import Any

from torch import Tensor

from ..core import tree
from ..errors import CaptureError
from .graph import Graph
from .key import kind


def check_own_memory(state: Any) -> None:
    """Refuse a state two of whose leaves share memory: written in place, one would change the other.

    Raises:
        CaptureError: Naming the leaves.
    """
    if getattr(state, "_origin", None) is not None:
        return
    seen: dict[int, str] = {}
    for path, leaf in tree.items(state):
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            continue
        if any(stride == 0 and size > 1 for size, stride in zip(leaf.shape, leaf.stride(), strict=True)):
            raise CaptureError(f"donate=True: {path} is expanded, its elements share memory; pass ps.tree.clone(state)")
        other = seen.setdefault(leaf.untyped_storage()._cdata, path)
        if other != path:
            raise CaptureError(f"donate=True: {path} and {other} share memory; pass ps.tree.clone(state), in which each has its own")


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """What a state that came out of a donating step remembers, so that the next call need not look at each leaf again."""

    owner: Any
    key: tuple
    """Step, structure and surroundings of the call."""
    leaves: list[Tensor]
    """Those of the state: the same tensors before and after."""
    rest: list[tuple]
    """Kinds of the leaves of the other arguments."""
    graph: Graph
    buffers: list[Tensor]
    """Those of which the leaves are views, with flat storage."""

    def fits(self, owner: Any, key: tuple, leaves: list[Any]) -> bool:
        """Whether a call with these leaves runs the same graph; the structure, which is compared, says how many there are."""
        if self.owner is not owner or self.graph.guard is not None or self.key != key:
            return False
        count = len(self.leaves)
        return all(map(is_, self.leaves, leaves)) and [kind(leaf) for leaf in leaves[count:]] == self.rest

    def holds(self, leaves: list[Any], graph: Graph) -> bool:
        """Whether these leaves live in the buffers that another graph wants."""
        groups = self.graph.flat.groups if self.graph.flat is not None else None
        return graph.flat is not None and graph.flat.groups == groups and all(map(is_, self.leaves, leaves))

    def __reduce__(self) -> tuple:
        return _nothing, ()  # a copy of a state, or one read from a pickle, comes from nowhere


def _nothing() -> None:
    return None


def give(state: Any, leaves: list[Any], owner: Any, key: tuple, graph: Graph) -> tuple[Any, Origin]:
    """Get a state ready whose memory a graph will overwrite: its own memory, or, with flat storage, buffers.

    The state is copied into buffers, unless another graph with the same buffers made it.

    Args:
        leaves: Of all arguments, those of the state first.
    """
    spec = tree.structure(state)
    own, rest = leaves[: spec.num_leaves], [kind(leaf) for leaf in leaves[spec.num_leaves :]]
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
        state = tree.unflatten(spec, own)
    return state, Origin(owner, key, own, rest, graph, buffers)


def remember(state: Any, origin: Origin) -> None:
    """Note on a state where it comes from; a plain dict or tuple cannot bear the note, and is looked at anew."""
    if hasattr(state, "__dict__"):
        object.__setattr__(state, "_origin", origin)


def successor(state: Any) -> Any:
    """A state of the same tensors, which now hold the new values, for a state that is refused from now on."""
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    return new
