"""What is rewritten in a recorded graph before inductor turns it into code; loaded with inductor, by `backends.py`.

Inductor calls it on the graph after functionalization: operations write to nothing but inputs of the graph, at its end.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten = torch.ops.aten

MAX_MULTIPLICATIONS = 16384
"""Of a matrix product that is written out: a CPU does them in the microsecond or two that it takes to call a library."""


class Rewriting(CustomGraphPass):
    """Both rewritings, in the form in which inductor takes them and knows its cached code by them."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph."""
        compute_once(graph)
        write_out_small_products(graph)

    def uuid(self) -> bytes:
        """Another text of this file is another rewriting."""
        return get_hash_for_files((__file__,))


def compute_once(graph: fx.Graph) -> None:
    """Compute what several hooks and transforms ask for, a norm above all, only once; results of their own keep memory of their own."""
    (output,) = graph.find_nodes(op="output")
    returned = {_memory(node) for node in output.all_input_nodes}
    first: dict[tuple, fx.Node] = {}
    for node in graph.nodes:
        if not _is_pure(node) or _memory(node) in returned:
            continue
        same = first.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return target.namespace == "aten" and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def write_out_small_products(graph: fx.Graph) -> None:
    """Write `a @ b` as a sum of products where it is small on a CPU: it becomes a part of the code around it.

    A call of a library costs 2 us, as much as all the arithmetic of a tiny step.
    """
    for node in graph.nodes:
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, a, b = node.args
        if not _is_small(a.meta["val"], b.meta["val"]):
            continue
        with graph.inserting_before(node):
            products = _add(graph, aten.mul.Tensor, _add(graph, aten.unsqueeze.default, a, 2), _add(graph, aten.unsqueeze.default, b, 0))
            new = _add(graph, aten.sum.dim_IntList, products, [1])
            if bias:
                new = _add(graph, aten.add.Tensor, new, *bias)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _is_small(a: Tensor, b: Tensor) -> bool:
    sizes = (*a.shape, b.shape[1])
    is_known = all(isinstance(size, int) for size in sizes)
    return is_known and a.device.type == "cpu" and a.dtype in (torch.float32, torch.float64) and math.prod(sizes) <= MAX_MULTIPLICATIONS


def _add(graph: fx.Graph, target: torch._ops.OpOverload, *args: Any) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = target(*[arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args])
    return node
