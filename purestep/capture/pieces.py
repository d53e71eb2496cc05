"""Pieces of a recorded graph that compute the new values of some leaves element by element, and can be cut off its end."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from .elementwise import SECRET_WRITERS, elementwise, has_shape, operation

aten = torch.ops.aten
# these are computed where they are read, so that they need no memory
_ON_THE_WAY = {aten.clone.default, aten.full.default, aten.zeros.default, aten.ones.default, aten.arange.default, aten.cat.default}


def last_writes(graph: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Which inputs the graph overwrites at its very end, and by which nodes."""
    writes: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.graph.nodes):
        if node.op == "output":
            continue
        if node.target is not aten.copy_.default or node.args[0].op != "placeholder" or node.users:
            break
        writes[node.args[0]] = node
    return dict(reversed(writes.items()))


class Piece:
    """What computes the new values of some leaves of one shape, element by element.

    Attributes:
        leaves: These inputs of the graph.
        inside: The element-wise nodes, in the order of the graph.
        operands: What they read: leaves first.
    """

    def __init__(self, leaves: list[fx.Node], writes: dict[fx.Node, fx.Node]):
        self.leaves, self.shape = leaves, leaves[0].meta["val"].shape
        self.values: list[Any] = [writes[leaf].args[1] for leaf in leaves]
        found: dict[fx.Node, None] = {}
        self.operands: dict[fx.Node, None] = dict.fromkeys(leaves)
        for value in self.values:
            self._enter(value, found)
        self.inside = list(found)

    def _enter(self, node: fx.Node, found: dict[fx.Node, None]) -> None:
        if node in found or node in self.operands:
            return
        if not _is_inside(node, self.shape):
            self.operands[node] = None
            return
        for arg in _nodes(node):
            self._enter(arg, found)
        found[node] = None

    def form(self) -> Any:
        """What two pieces have in common if one can be computed by the code of the other."""
        number = {node: i for i, node in enumerate((*self.operands, *self.inside))}

        def named(arg: Any) -> Any:
            return number[arg] if isinstance(arg, fx.Node) else repr(arg)

        kinds = [(node.meta["val"].dtype, node.meta["val"].ndim > 0) for node in self.operands]
        steps = []
        for node in self.inside:
            target, args, kwargs = _operation(node)
            steps.append((target, *map(named, args), *map(repr, kwargs.items())))
        return (tuple(kinds), tuple(steps), tuple(number[value] for value in self.values))

    def body(self) -> fx.GraphModule:
        """The piece as a graph of its operands."""
        graph = fx.Graph()
        new = {node: graph.placeholder(f"operand_{i}") for i, node in enumerate(self.operands)}
        for node in self.inside:
            target, args, kwargs = _operation(node)
            new[node] = graph.call_function(target, tuple(new[arg] if isinstance(arg, fx.Node) else arg for arg in args), kwargs)
        for leaf, value in zip(self.leaves, self.values, strict=True):
            graph.call_function(aten.copy_.default, (new[leaf], new[value]))
        graph.output(())
        return fx.GraphModule({}, graph)


def _operation(node: fx.Node) -> tuple[Any, list[Any], dict[str, Any]]:
    found = operation(node)
    assert found is not None
    return found


def _nodes(node: fx.Node) -> list[fx.Node]:
    return [arg for arg in _operation(node)[1] if isinstance(arg, fx.Node)]


def _is_inside(node: fx.Node, shape: torch.Size) -> bool:
    """Whether a value can be computed in a piece of this shape: element by element, from values of the shape and scalars."""
    found = operation(node) if has_shape(node, shape) else None
    return found is not None and all(
        has_shape(arg, shape) or is_scalar(arg) if isinstance(arg, fx.Node) else not isinstance(arg, list | tuple) for arg in found[1]
    )


def is_scalar(node: fx.Node) -> bool:
    """Whether a value is a tensor without dimensions."""
    return has_shape(node, torch.Size())


def find_pieces(graph: fx.GraphModule) -> Iterator[Piece]:
    """Those parts of the end of a graph that can be cut off, each with as many leaves as are computed together."""
    writes = last_writes(graph)
    single = {leaf: Piece([leaf], writes) for leaf in writes if is_flat(leaf) and leaf.meta["val"].numel() > 1}
    joined: dict[fx.Node, list[fx.Node]] = {leaf: [leaf] for leaf in single}
    owner: dict[fx.Node, fx.Node] = {}
    for leaf, piece in single.items():
        for node in (*piece.inside, *piece.operands):
            if node in single or node in piece.inside:
                _join(joined, leaf, owner.setdefault(node, node if node in single else leaf))
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    last = max((i for node, i in order.items() if moves_memory(node) and node not in writes.values()), default=-1)
    for leaves in {id(group): group for group in joined.values()}.values():
        piece = Piece(sorted(leaves, key=order.__getitem__), writes)
        settled = all(order[node] > last for node in piece.inside)  # nothing that it reads changes before the end
        if settled and all(leaf.meta["val"].shape == piece.shape for leaf in leaves) and _can_be_cut(piece, writes):
            yield piece


def _join(joined: dict[fx.Node, list[fx.Node]], one: fx.Node, other: fx.Node) -> None:
    if joined[one] is not joined[other]:
        joined[one].extend(joined[other])
        for leaf in joined[other]:
            joined[leaf] = joined[one]


def is_flat(node: fx.Node) -> bool:
    """Whether a value is a tensor that lies in a row, on the CPU; elsewhere each call would be a launch."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.ndim > 0 and value.is_contiguous() and value.device.type == "cpu"


def moves_memory(node: fx.Node) -> bool:
    """Whether a node writes into what it is given."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target._schema.is_mutable or node.target in SECRET_WRITERS


def _can_be_cut(piece: Piece, writes: dict[fx.Node, fx.Node]) -> bool:
    """Whether a piece reads only what is there at the end, and gives nothing but its leaves."""
    inside, ends = set(piece.inside), {writes[leaf] for leaf in piece.leaves}
    if not all(value in inside for value in piece.values) or not all(
        node in piece.leaves or is_there(node, writes) for node in piece.operands
    ):
        return False
    # a value that comes of the gradients alone may be computed a second time; one that comes of leaves, which change, may not
    changing = set(piece.leaves)
    for node in piece.inside:
        if changing.intersection(_nodes(node)):
            changing.add(node)
            if not inside.union(ends).issuperset(_readers(node)):
                return False
    return True


def is_there(node: fx.Node, writes: dict[fx.Node, fx.Node]) -> bool:
    """Whether a value, as it is at the end of the graph, is in memory anyway, and not in that of a leaf that is overwritten."""
    origin = source(node)
    if origin in writes or any(user.target in SECRET_WRITERS for user in origin.users):
        return False
    return is_scalar(node) or (is_flat(node) and operation(origin) is None and origin.target not in _ON_THE_WAY)


def source(node: fx.Node) -> fx.Node:
    """Where the memory of a value comes from."""
    while _is_view(node) or (node.target is operator.getitem and _is_view(node.args[0])):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and (node.target.is_view or node.target is aten._unsafe_view.default)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a value; a `_foreach` operation reads it for one of its parts."""
    for user in node.users:
        if elementwise(user) is None:
            yield user
            continue
        parts = {i for arg in user.args if isinstance(arg, list | tuple) for i, x in enumerate(arg) if x is node}
        for part in user.users:
            if part.target is not operator.getitem or part.args[1] in parts or node in user.args:
                yield part
