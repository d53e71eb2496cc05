"""Outlining: leaves that are updated alike are updated by one kernel, compiled once and called for each of them.

Inductor compiles the update of each leaf anew, shape by shape, and fuses these updates into kernels of thousands of lines; for a model of
many layers that takes longer than all of its layers. Here the element-wise end of the recorded graph, which writes the leaves, is cut
off. The code that was cut off is the same for many leaves, once they are seen as flat, so one small graph of any length serves them all.
Norms of many leaves are treated in the same way. The arithmetic of each element stays what it was.

Only what costs nothing else is cut off: a value that something outside needs too, or an operand that would first have to be stored, keeps
its leaf where it was.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .pieces import Piece, find_pieces, is_scalar, is_there, last_writes, moves_memory, source

aten = torch.ops.aten
MIN_CALLS = 16
"""Fewest leaves, or sets of leaves, that one piece of code must serve: fewer are compiled soon enough."""
MIN_ELEMENTS = 16384
"""Fewest elements that they must have on average: a call takes some microseconds, which a small leaf does not."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A graph, and with what it is called: positions in a list that begins with the inputs and grows by what each call returns."""

    graph: fx.GraphModule
    calls: tuple[tuple[int, ...], ...]
    operands: tuple[Tensor, ...]
    """What the first call is given; only shapes and dtypes matter."""
    is_shared: bool = False
    """Whether it takes tensors of any length, seen as flat, beside scalars."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A graph that was cut into stages, which run one after the other."""

    stages: tuple[Stage, ...]
    results: tuple[int, ...]
    """Positions of what the whole graph returned."""

    def count(self) -> int:
        """How often shared code is called."""
        return sum(len(stage.calls) for stage in self.stages if stage.is_shared)

    def link(self, runs: Sequence[Callable[..., Any]]) -> Callable[..., list[Tensor]]:
        """The callable of the whole graph, from those of its stages."""
        parts = [(run, stage.is_shared, stage.calls) for run, stage in zip(runs, self.stages, strict=True)]

        def run_all(*inputs: Tensor) -> list[Tensor]:
            values = list(inputs)
            for run, is_shared, calls in parts:
                for call in calls:
                    given = [values[i] for i in call]
                    values.extend(run(*[x.reshape(-1) if x.ndim > 1 else x for x in given] if is_shared else given))
            return [values[i] for i in self.results]

        return run_all


def outline(graph: fx.GraphModule) -> Program | None:
    """Cut the updates off a graph that ends in writing new values into its inputs, which changes it; None where that would not pay."""
    by_form: dict[Any, list[Piece]] = {}
    for piece in find_pieces(graph):
        by_form.setdefault(piece.form(), []).append(piece)
    chosen = [pieces for pieces in by_form.values() if _pays([piece.leaves[0] for piece in pieces])]
    if not chosen:
        return None
    bodies = [pieces[0].body() for pieces in chosen]
    writes = last_writes(graph)
    (output,) = graph.graph.find_nodes(op="output")
    results = list(output.args[0])
    for node in [writes[leaf] for pieces in chosen for piece in pieces for leaf in piece.leaves]:
        graph.graph.erase_node(node)
    position = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    wanted = _computed((*results, *(node for pieces in chosen for piece in pieces for node in piece.operands)))
    _return(graph, wanted)
    stages = _cut_norms(graph, wanted, position) or [_whole(graph, wanted, position)]
    for body, pieces in zip(bodies, chosen, strict=True):
        calls = tuple(tuple(position[node] for node in piece.operands) for piece in pieces)
        stages.append(Stage(body, calls, _values(pieces[0].operands), is_shared=True))
    return Program(tuple(stages), tuple(position[node] for node in results))


def _pays(leaves: Sequence[fx.Node]) -> bool:
    return len(leaves) >= MIN_CALLS and sum(leaf.meta["val"].numel() for leaf in leaves) >= MIN_ELEMENTS * len(leaves)


def _computed(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Each of these values once, inputs left out."""
    return list(dict.fromkeys(node for node in nodes if node.op != "placeholder"))


def _values(nodes: Iterable[fx.Node]) -> tuple[Tensor, ...]:
    return tuple(node.meta["val"] for node in nodes)


def _return(graph: fx.GraphModule, wanted: list[fx.Node]) -> None:
    """Let a graph return these values, and compute nothing else."""
    (output,) = graph.graph.find_nodes(op="output")
    output.args = (list(wanted),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _number(nodes: Iterable[fx.Node], position: dict[fx.Node, int]) -> None:
    for node in nodes:
        position[node] = len(position)


def _whole(graph: fx.GraphModule, wanted: list[fx.Node], position: dict[fx.Node, int]) -> Stage:
    """A graph of all inputs as a stage; `position` learns where its results are."""
    inputs = graph.graph.find_nodes(op="placeholder")
    _number(wanted, position)
    return Stage(graph, (tuple(position[node] for node in inputs),), _values(inputs))


def _cut_norms(graph: fx.GraphModule, wanted: list[fx.Node], position: dict[fx.Node, int]) -> list[Stage] | None:
    """Stages of a graph that takes norms of many leaves: what comes before, the norms by shared code, and what comes after.

    None where there are few, or more than scalars comes after: that would have to be stored in between.
    """
    norms = _norms(graph)
    late = _after(graph, norms)
    if not norms or late is None:
        return None
    given = dict.fromkeys(arg for node in late for arg in node.all_input_nodes if arg not in late)
    early = _computed(node for node in (*wanted, *(norm.args[0] for norm in norms), *given) if node not in late and node not in norms)  # type: ignore[misc]
    answers = [node for node in wanted if node in late]
    over: list[Any] = [norm.args[0] for norm in norms]
    one, after = _copied(norms[:1], over[:1], norms[:1]), _copied(late, given, answers)
    for node in [node for node in late if node.target is aten.copy_.default]:
        graph.graph.erase_node(node)
    _return(graph, early)
    stages = [_whole(graph, early, position)]
    stages.append(Stage(one, tuple((position[node],) for node in over), _values(over[:1]), is_shared=True))
    _number(norms, position)
    stages.append(Stage(after, (tuple(position[node] for node in given),), _values(given)))
    _number(answers, position)
    return stages


def _norms(graph: fx.GraphModule) -> list[fx.Node]:
    """Norms of whole tensors that are there as they are, of one dtype."""
    written = last_writes(graph)
    by_kind: dict[Any, list[fx.Node]] = {}
    for node in graph.graph.find_nodes(op="call_function", target=aten.linalg_vector_norm.default):
        if is_scalar(node) and len(node.args) == 1 and is_there(node.args[0], written):
            by_kind.setdefault((node.args[0].meta["val"].dtype, repr(node.kwargs)), []).append(node)
    most = max(by_kind.values(), key=len, default=[])
    return most if _pays([norm.args[0] for norm in most]) else []  # type: ignore[misc]


def _after(graph: fx.GraphModule, norms: list[fx.Node]) -> dict[fx.Node, None] | None:
    """All that depends on these norms, and the writing of scalars; None where that is more than scalars."""
    late: dict[fx.Node, None] = {}
    writes = last_writes(graph)
    for node in graph.graph.nodes:
        writes_scalar = node.target is aten.copy_.default and node in writes.values() and is_scalar(node)
        if node.op == "output" or node in norms or not (writes_scalar or any(arg in late or arg in norms for arg in node.all_input_nodes)):
            continue
        reads = [arg for arg in node.all_input_nodes if arg not in late and arg not in norms]
        if not is_scalar(node) or not all(map(is_scalar, reads)) or (moves_memory(node) and not writes_scalar):
            return None
        late[node] = None
    early_writes = {leaf for leaf, write in writes.items() if write not in late}
    given = {arg for node in late for arg in node.all_input_nodes if arg not in late and arg not in norms}
    changed = any(arg in early_writes if arg.op == "placeholder" else source(arg) in writes for arg in given)
    return None if changed else late


def _copied(nodes: Iterable[fx.Node], given: Iterable[fx.Node], returned: Iterable[fx.Node]) -> fx.GraphModule:
    """These nodes as a graph of what they are given."""
    graph = fx.Graph()
    new = {node: graph.placeholder(f"given_{i}") for i, node in enumerate(given)}
    for node in nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    graph.output([new[node] for node in returned])
    return fx.GraphModule({}, graph)
