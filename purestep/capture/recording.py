"""Recording a step as one flat graph, and calling the graph with the leaves of its arguments.

Everything that the graph needs is an input of it: the leaves, and the tensors that a model closes over. With donation the new state is
written into the memory of the old one at the end of the graph.
"""

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..core import tree
from ..errors import CaptureError, PurestepError
from .backends import Compiler, compile_graph, preparing
from .donation import successor
from .graph import CaptureRecord, Graph, Run
from .host_reads import HostReads, guard_graph
from .later import recomputed_later
from .lines import line_of
from .replay import Replays, obstacle, replays_of
from .sizes import Symbols, recorded, refuse_sizes, relied_on
from .storage import Flat, flatten_storage


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely: each time it goes through all that inductor has loaded, and through the growing graph."""
    first, *others = gc.get_threshold()
    if first:  # 0 is never
        gc.set_threshold(max(first, 100_000), *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


@_rare_collections()
def capture_by_trace(
    step: Callable[..., Any], leaves: list[Any], spec: Any, donate: bool, compiler: Compiler, symbols: Symbols | None = None
) -> Graph:
    """Record the step at these leaves, and compile the record.

    Args:
        symbols: Sizes that are not known to the graph; None: all are.

    Raises:
        CaptureError: If it cannot be recorded, or takes one of these sizes as a number.
    """
    began = time.perf_counter()
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    reads, out = HostReads(), _Results((), 0)
    old_form = _form(tree.unflatten(spec, leaves)[0][0]) if donate else None
    num_state = 0 if old_form is None else old_form.num_leaves

    def flat(*tensors: Tensor) -> list[Tensor]:
        nonlocal out
        filled = list(leaves)
        for i, tensor in zip(positions, tensors, strict=True):
            filled[i] = tensor
        args, kwargs = tree.unflatten(spec, filled)
        with reads, reads.functions, recomputed_later(lambda: reads.latest, tensors):
            returned = step(*args, **kwargs)
        refuse_sizes(returned)
        results = [x for x in tree.leaves(returned) if isinstance(x, Tensor)]
        if donate:
            _check_form(old_form, returned)
            results = _write_back(filled[:num_state], results, tensors)
        out = _Results(returned, num_state)
        return [*results, *reads.tensors]

    example = [leaves[i].detach().clone() for i in positions] if symbols is None else [symbols.stand_in(leaves[i], i) for i in positions]
    with preparing(compiler, example):
        graph = _record(flat, example, symbols)
    traced = time.perf_counter()
    num_nodes = len(graph.graph.nodes)
    guard, graph = _split_guards(graph, len(reads.reads))
    graph, constants = _lift_constants(graph)
    inputs = [*(leaves[i].detach() for i in positions), *constants]
    if symbols is not None:
        inputs = [*example, *map(symbols.stand_in, constants)]
    flat_storage: Flat | None = None
    if compiler.storage == "flat":
        graph, flat_storage = flatten_storage(graph, inputs)
        buffers, inputs = flat_storage.pack(inputs)
        inputs = [*buffers, *(inputs[i] for i in flat_storage.others)]
    run, cache, shared = _compiled(graph, inputs, compiler)
    sizes, condition = relied_on(symbols, spec)
    calls = _Calls(out, _given(len(leaves), positions, flat_storage), constants)
    end = len(inputs) - len(constants)
    batch = slice(end - sum(i >= num_state for i in positions), end)
    reason = "it reads numbers on the host" if reads.reads else "its sizes vary" if symbols is not None else obstacle(graph, inputs)
    replays, note = replays_of(run, batch, compiler.cuda_graphs, reason)
    where = tuple(f"{read.value} at {read.where}" for read in reads.reads)
    record = CaptureRecord("trace", "", num_nodes, where, traced - began, time.perf_counter() - traced, cache, shared, sizes, note)
    guarded, check = tuple(reads.reads), _checking(guard, positions)
    return Graph(calls.by(run), record, guarded, check, flat_storage, condition, calls.by_replaying(replays), constants)


@dataclasses.dataclass(frozen=True)
class _Calls:
    """How a call gets from the leaves of its arguments to those of a graph, and from what that returns to its result."""

    out: "_Results"
    given: list[int] | None
    constants: list[Tensor]

    def by(self, run: Callable[..., Any]) -> Run:
        def call(leaves: list[Any], state: Any, buffers: list[Tensor]) -> Any:
            tensors = leaves if self.given is None else [leaves[i] for i in self.given]
            return self.out.rebuild(run(*buffers, *tensors, *self.constants), leaves, state)

        return call

    def by_replaying(self, replays: Replays | None) -> Callable[[list[Tensor]], Run] | None:
        return None if replays is None else lambda own: self.by(replays.at(own))


def _compiled(graph: fx.GraphModule, inputs: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str, int]:
    """As `compile_graph`, out of the autocast around the call: casts are recorded, and where there is none, none is to be."""
    around = torch._C._is_any_autocast_enabled()
    with torch._C._DisableAutocast():
        run, cache, shared = compile_graph(graph, inputs, compiler)

    def without_autocast(*tensors: Tensor) -> Any:
        with torch._C._DisableAutocast():
            return run(*tensors)

    return without_autocast if around else run, cache, shared


def _checking(guard: fx.GraphModule | None, positions: list[int]) -> Callable[[list[Any]], Any] | None:
    def check(leaves: list[Any]) -> Any:
        with torch.no_grad(), torch._C._DisableAutocast():
            return guard(*[leaves[i] for i in positions])  # type: ignore[misc]

    return None if guard is None else check


def _record(flat: Callable[..., list[Tensor]], example: list[Tensor], symbols: Symbols | None) -> fx.GraphModule:
    try:
        # the backward runs on this thread, or context is lost; oneDNN's recurrent layers cannot be recorded, their parts can
        with torch.autograd.set_multithreading_enabled(False), _without_onednn(), _one_fake_mode(example), recorded(symbols):
            graph = make_fx(flat)(*example)
    except (PurestepError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError) as error:
        if isinstance(error, TypeError) and symbols is None:  # a size that is no number cannot be hashed, say
            raise
        raise CaptureError(f"the step could not be recorded at {line_of(error)}: {error}{_advice(str(error))}") from error
    _refuse_random(graph)
    return graph


def _advice(text: str) -> str:
    is_decision = any(word in text for word in ("data-dependent", "HigherOrderOperator", ".item()"))
    return "; let torch.where(condition, a, b) decide by values instead of if, while, torch.cond or .item()" if is_decision else ""


def _given(num_leaves: int, positions: list[int], flat: Flat | None) -> list[int] | None:
    """Which leaves a call hands to the graph; None: all."""
    if flat is not None:
        return [positions[i] for i in flat.others if i < len(positions)]
    return None if len(positions) == num_leaves else positions


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags sets TF32 as well, and warns
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _one_fake_mode(example: list[Tensor]) -> contextlib.AbstractContextManager[Any]:
    """What the nodes know of their values belongs to one mode; else each value gets a mode of its own, and that a trace of the stack."""
    if torch._guards.detect_fake_mode(example) is not None:
        return contextlib.nullcontext()
    return torch._guards.tracing(torch._guards.TracingContext(FakeTensorMode()))


class _Results:
    """What the step returned while it was recorded: the structure, and what is no tensor.

    Args:
        num_state: Of the leaves of a state that was given away, whose tensors are those of the first result; 0 without donation.
    """

    def __init__(self, returned: Any, num_state: int) -> None:
        self.num_state = num_state
        self.has_successor = num_state > 0 and type(returned) is tuple and dataclasses.is_dataclass(returned[0])
        flat, self.spec = tree.flatten(returned[1:] if self.has_successor else returned)
        self.constants = [None if isinstance(x, Tensor) else x for x in flat]
        self.only_tensors = all(x is None for x in self.constants)

    def rebuild(self, tensors: Any, leaves: list[Any], state: Any) -> Any:
        """The result of a call, from what the graph returned, the leaves of the arguments, and the state that was given away."""
        if self.has_successor:
            return (successor(state), *self._fill(tensors))
        return self._fill([*leaves[: self.num_state], *tensors])

    def _fill(self, tensors: Any) -> Any:
        if self.only_tensors:
            return tree.unflatten(self.spec, tensors)
        fresh = iter(tensors)
        return tree.unflatten(self.spec, [next(fresh) if x is None else x for x in self.constants])


def _form(state: Any) -> Any:
    """The structure of a state whose memory is to be given away.

    Raises:
        CaptureError: Naming a leaf that has none.
    """
    for path, leaf in tree.items(state):
        if not isinstance(leaf, Tensor):
            advice = "" if isinstance(leaf, str) else f"as torch.tensor({leaf!r}), or keep it "
            raise CaptureError(
                f"donate=True: {path or 'the state'} is {leaf!r}, no tensor, so it has no memory to give away; "
                f"keep it {advice}out of the state"
            )
    return tree.structure(state)


def _check_form(old: Any, returned: Any) -> None:
    first = returned[0] if isinstance(returned, tuple) and returned else None
    if old != tree.structure(first):
        raise CaptureError("donate=True: the first result must have the structure, shapes and dtypes of the first argument")


def _write_back(old: list[Tensor], results: list[Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Write the new state into the memory of the old one, at the end of the graph; returns what is left to return."""
    if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(old, results, strict=False)):
        raise CaptureError("donate=True: the first result must have the structure, shapes and dtypes of the first argument")
    memory = {x.untyped_storage()._cdata for x in inputs}
    # a result in the memory of an input is copied before anything is overwritten
    kept = [new.clone() if new.untyped_storage()._cdata in memory else new for new in results[len(old) :]]
    fresh = [new.clone() if new is not a and new.untyped_storage()._cdata in memory else new for a, new in zip(old, results, strict=False)]
    for a, new in zip(old, fresh, strict=True):
        if new is not a:
            a.copy_(new)
    return kept


def _draws(node: fx.Node) -> bool:
    """Whether an operation draws from a global generator; attention without dropout bears the tag, but does not."""
    if torch.Tag.nondeterministic_seeded not in node.target.tags:  # type: ignore[union-attr]
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs
    chance = next((given.get(argument.name, argument.default_value) for argument in arguments if argument.name == "dropout_p"), None)
    return chance != 0.0


def _refuse_random(graph: fx.GraphModule) -> None:
    """A graph that draws from a global generator would not be the step.

    Raises:
        CaptureError: Naming the operation, and the line where it is known.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and _draws(node):
            raise CaptureError(
                f"the step calls {node.target}, which draws from a global generator; inside a step use torch.rand, randn, randint, "
                f"randperm, bernoulli or dropout, which take their bits from the state's seed. {node.stack_trace or ''}"
            )


def _split_guards(graph: fx.GraphModule, num_guards: int) -> tuple[fx.GraphModule | None, fx.GraphModule]:
    """The guards as a graph of their own, and the graph without them."""
    if num_guards == 0:
        return None, graph
    guard = guard_graph(graph, num_guards)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    output.args = (list(output.args[0])[:-num_guards],)
    graph.recompile()
    return guard, graph


def _lift_constants(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[Tensor]]:
    """Make the tensors that a model closes over inputs, so that nothing is frozen into the code; returns these too."""
    constants: dict[str, Tensor] = {}
    placeholders: dict[str, fx.Node] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1:]
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        value = _attribute(graph, str(node.target))
        if not isinstance(value, Tensor):
            continue
        name = str(node.target)
        if name not in placeholders:
            with graph.graph.inserting_after(last[0]) if last else graph.graph.inserting_before(next(iter(graph.graph.nodes))):
                placeholders[name] = graph.graph.placeholder(f"constant_{len(placeholders)}")
            last = [placeholders[name]]
            constants[name] = value.detach()
        node.replace_all_uses_with(placeholders[name])
        graph.graph.erase_node(node)
    if constants:
        graph.recompile()
    return graph, list(constants.values())


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root


def capture_by_dynamo(step: Callable[..., Any], leaves: list[Any], spec: Any, donate: bool, compiler: Compiler) -> Graph:
    """`torch.compile(fullgraph=True)`.

    Raises:
        CaptureError: If donation is asked for; when it is called, if Dynamo cannot take the step whole.
    """
    if donate:
        raise CaptureError("capture='dynamo' cannot donate; use capture='trace'")
    began = time.perf_counter()
    run = torch._dynamo.lookup_backend(compiler.backend)

    def checked(graph: fx.GraphModule, example: list[Tensor]) -> Any:
        _refuse_regions(graph)
        _refuse_random_functions(graph)
        return run(graph, example)

    compiled = torch.compile(step, fullgraph=True, backend=checked)

    def call(leaves: list[Any], state: Any, buffers: list[Tensor]) -> Any:
        args, kwargs = tree.unflatten(spec, leaves)
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.Unsupported as error:
            raise CaptureError(f"capture='dynamo' cannot take the step whole{_advice(str(error).lower())}. {error}") from error
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, CaptureError):  # what was refused above, not a defect of a backend
                raise error.inner_exception from None
            raise

    return Graph(call, CaptureRecord("dynamo", "", 0, (), time.perf_counter() - began, 0.0))


def _refuse_regions(graph: fx.GraphModule) -> None:
    """Dynamo takes the gradient by `torch.func`, which cannot recompute a region."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            where = node.stack_trace or ""
            raise CaptureError(f"capture='dynamo' cannot recompute checkpointed regions; use capture='trace'. {where}")


def _refuse_random_functions(graph: fx.GraphModule) -> None:
    """As `_refuse_random`, for a graph of Dynamo, whose nodes are functions rather than operators."""
    hidden = {torch.rand_like, torch.randn_like, torch.randint_like, torch.normal}
    hidden |= {torch.rand, torch.randn, torch.randint, torch.randperm}  # before torch 2.13
    for node in graph.graph.nodes:
        if node.target in hidden:
            raise CaptureError(
                f"the step calls torch.{node.target.__name__}, which Dynamo hides from keyed randomness; write torch.rand(x.shape) or "
                f"torch.randn(x.shape) instead, or use capture='trace'. {node.stack_trace or ''}"
            )
