"""Flat storage: leaves of the state that are updated alike live in one buffer, and are updated by one operation.

The recorded graph is rewritten: the leaves become slices of a buffer, and what is written into them is computed once for the whole
buffer. Only element-wise operations are joined, so that each element sees the arithmetic that it saw before; and a norm over all leaves
is taken over their concatenation, which sums in another order. Outside, leaves are views: structure, paths and checkpoints stay as they
are.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from .elementwise import SECRET_WRITERS, elementwise, has_shape, is_part, is_pointwise

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Flat:
    """Which inputs of a graph became slices of buffers: the graph now takes the buffers, then the other inputs."""

    groups: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]

    def pack(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Buffers with the values of the inputs, and the inputs, now views of the buffers where they belong to one."""
        buffers, views = [], list(tensors)
        for group in self.groups:
            buffers.append(torch.cat([tensors[i].detach().reshape(-1) for i in group]))
            parts = buffers[-1].split([tensors[i].numel() for i in group])
            for i, part in zip(group, parts, strict=True):
                views[i] = part.view(tensors[i].shape)
        return buffers, views


def flatten_storage(recorded: fx.GraphModule, example: list[Tensor]) -> tuple[fx.GraphModule, Flat]:
    """Rewrite a graph that ends in writing new values into its inputs."""
    with torch.no_grad():  # nothing but the last writes may happen in place, or an operation could not be moved
        graph = make_fx(torch.func.functionalize(recorded), tracing_mode="fake")(*example)
    _drop_copies(graph)
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    writes = {node.args[0]: node for node in graph.graph.nodes if node.target is aten.copy_.default and node.args[0].op == "placeholder"}
    groups = _groups(inputs, writes)
    if groups:
        _Joiner(graph, groups, writes).rewrite()
    taken = {node for group in groups for node in group}
    number = {node: i for i, node in enumerate(inputs)}
    others = tuple(i for i, node in enumerate(inputs) if node not in taken)
    return graph, Flat(tuple(tuple(number[node] for node in group) for group in groups), others)


def _drop_copies(graph: fx.GraphModule) -> None:
    """What is written is the value itself, not a copy of it."""
    for node in graph.graph.find_nodes(op="call_function", target=aten.copy.default):
        old, new = (arg.meta["val"] for arg in node.args[:2])
        if (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device):
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)


def _groups(inputs: list[fx.Node], writes: dict[fx.Node, fx.Node]) -> list[list[fx.Node]]:
    """Neighbouring inputs that are written alike: by the same expression, over leaves of one dtype on one device."""
    groups: list[list[fx.Node]] = []
    last: Any = None
    for node in inputs:
        value = node.meta["val"]
        fits = node in writes and value.ndim > 0 and value.numel() > 0 and value.is_contiguous()
        form = (value.dtype, value.device, _expression(writes[node].args[1])) if fits else None
        if form is not None and form == last:
            groups[-1].append(node)
        elif form is not None:
            groups.append([node])
        last = form
    return [group for group in groups if len(group) > 1]


def _expression(node: Any) -> Any:
    """How a value is computed, up to what differs from leaf to leaf."""
    if not isinstance(node, fx.Node):
        return repr(node)
    if _changes(node):
        return "leaf"
    if is_part(node):
        return node.args[0]
    if is_pointwise(node):
        same = node.meta["val"].shape
        return (node.target, *(_expression(arg) if has_shape(arg, same) else arg for arg in node.args))
    return "leaf"


def _changes(node: fx.Node) -> bool:
    return any(user.target in SECRET_WRITERS for user in node.users)


class _Joiner:
    """Computes for lists of values their concatenation, by joining the operations that make them."""

    def __init__(self, graph: fx.GraphModule, groups: list[list[fx.Node]], writes: dict[fx.Node, fx.Node]):
        self.module, self.graph, self.groups, self.writes = graph, graph.graph, groups, writes
        self.joined: dict[tuple[fx.Node, ...], fx.Node] = {}

    def rewrite(self) -> None:
        first_input = next(iter(self.graph.nodes))
        buffers = []
        for i, group in enumerate(self.groups):
            with self.graph.inserting_before(first_input):
                buffers.append(self.graph.placeholder(f"buffer_{i}"))
            self.joined[tuple(group)] = buffers[-1]
        self._norms()
        # before anything is overwritten
        with self.graph.inserting_before(next(node for node in self.graph.nodes if node in set(self.writes.values()))):
            new = [self.join(tuple([_written(self.writes[node]) for node in group])) for group in self.groups]
        with self.graph.inserting_before(next(node for node in reversed(self.graph.nodes) if node.op == "output")):
            for buffer, value in zip(buffers, new, strict=True):
                self.graph.call_function(aten.copy_.default, (buffer, value))
        self._slice(buffers)
        self.graph.eliminate_dead_code()
        self.module.recompile()

    def _norms(self) -> None:
        """Take a norm over as many leaves as a group has over their concatenation: one reduction instead of one for each leaf."""
        sizes = {len(group) for group in self.groups}
        for root in list(self.graph.find_nodes(op="call_function", target=aten.sqrt.default)):
            leaves = _leaves_of_norm(root)
            if leaves is not None and len(leaves) in sizes and len({leaf.meta["val"].dtype for leaf in leaves}) == 1:
                with self.graph.inserting_before(root):
                    norm = self.graph.call_function(
                        aten.linalg_vector_norm.default, (self.join(leaves),), {"dtype": root.meta["val"].dtype}
                    )
                root.replace_all_uses_with(norm)

    def _slice(self, buffers: list[fx.Node]) -> None:
        """Let what reads a leaf read its part of the buffer; the writes of single leaves are gone."""
        last_input = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
        for buffer, group in zip(buffers, self.groups, strict=True):
            begin = 0
            for node in group:
                value = node.meta["val"]
                self.graph.erase_node(self.writes[node])
                with self.graph.inserting_after(last_input):
                    part = self.graph.call_function(aten.slice.Tensor, (buffer, 0, begin, begin + value.numel()))
                with self.graph.inserting_after(part):
                    leaf = self.graph.call_function(aten.view.default, (part, list(value.shape)))
                node.replace_all_uses_with(leaf)
                self.graph.erase_node(node)
                begin += value.numel()

    def join(self, values: tuple[fx.Node, ...]) -> fx.Node:
        """The values one after the other, as one tensor of one dimension."""
        if values not in self.joined:
            joined = None if any(map(_changes, values)) else self._parts(values) or self._pointwise(values)
            self.joined[values] = joined or self._cat(values)
        return self.joined[values]

    def _parts(self, values: tuple[fx.Node, ...]) -> fx.Node | None:
        if not all(map(is_part, values)) or len({value.args[0] for value in values}) > 1:
            return None
        source, shapes = values[0].args[0], [value.meta["val"].shape for value in values]
        rows = [[arg[v.args[1]] for v in values] if isinstance(arg, list | tuple) else arg for arg in source.args]  # type: ignore[union-attr, index]
        if not _one_dtype(values, rows) or not all(
            has_shape(x, s) for row in rows if isinstance(row, list) for x, s in zip(row, shapes, strict=True)
        ):
            return None
        args = tuple(self.join(tuple(row)) if isinstance(row, list) else row for row in rows)
        return self.graph.call_function(elementwise(source), args)

    def _pointwise(self, values: tuple[fx.Node, ...]) -> fx.Node | None:
        first: Any = values[0]
        if not all(is_pointwise(v) and v.target is first.target and len(v.args) == len(first.args) for v in values):
            return None
        rows: list[Any] = []
        for i in range(len(first.args)):
            column = [v.args[i] for v in values]
            if all(has_shape(x, v.meta["val"].shape) for x, v in zip(column, values, strict=True)):
                rows.append(column)
            elif all(x is column[0] or (not isinstance(x, fx.Node) and x == column[0]) for x in column) and _is_scalar(column[0]):
                rows.append(column[0])
            else:
                return None
        if not _one_dtype(values, rows):
            return None
        return self.graph.call_function(first.target, tuple(self.join(tuple(row)) if isinstance(row, list) else row for row in rows))

    def _cat(self, values: tuple[fx.Node, ...]) -> fx.Node:
        return self.graph.call_function(aten.cat.default, ([self.graph.call_function(aten.reshape.default, (v, [-1])) for v in values],))


def _written(write: fx.Node) -> fx.Node:
    value = write.args[1]
    assert isinstance(value, fx.Node)
    return value


def _leaves_of_norm(root: Any) -> tuple[fx.Node, ...] | None:
    """The tensors whose joint Euclidean norm a node is: the root of a sum of squares of their norms."""
    norms: list[Any] = []
    total = root.args[0]
    while total.target is aten.addcmul.default and total.args[1] is total.args[2] and not total.kwargs:
        norms.append(total.args[1])
        total = total.args[0]
    if not norms or total.target is not aten.pow.Tensor_Scalar or total.args[1] != 2:
        return None
    norms.append(total.args[0])
    plain = all(n.target is aten.linalg_vector_norm.default and len(n.args) == 1 and list(n.kwargs) == ["dtype"] for n in norms)
    same = len({node.meta["val"].dtype for node in (root, *norms)}) == 1
    return tuple(n.args[0] for n in reversed(norms)) if plain and same else None


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, fx.Node) or (isinstance(value.meta.get("val"), Tensor) and value.meta["val"].ndim == 0)


def _one_dtype(values: tuple[fx.Node, ...], rows: list[Any]) -> bool:
    """Whether each operand has one dtype for all leaves, none of which is a scalar: then promotion is that of each leaf."""
    lists = [list(values), *(row for row in rows if isinstance(row, list))]
    return all(len({node.meta["val"].dtype for node in nodes}) == 1 and all(node.meta["val"].ndim > 0 for node in nodes) for nodes in lists)
