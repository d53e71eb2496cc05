"""From a pure step to a fast one: capture as one graph, compile, reuse memory. Results are those of the step itself.

`trace` runs the step once on stand-ins and records every operation (JAX's way), then compiles the record with inductor: it takes models
that differentiate inside their forward, and a call costs one flatten, one look-up and one flat call. `dynamo` is
`torch.compile(fullgraph=True)`. Nothing of this leaks into transforms or hooks.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from .core import tree
from .core.state import check_not_consumed, mark_consumed
from .errors import CaptureError, RecompileError

Capture = Literal["auto", "trace", "dynamo"]
OnRecompile = Literal["warn", "error", "ignore"]
Backend = Literal["inductor", "aot_eager", "eager"]


@dataclasses.dataclass(frozen=True)
class CaptureRecord:
    """One graph that was captured."""

    engine: str
    reason: str
    """Why it was captured: the first call, or what differed from the call before."""
    nodes: int
    """Operations in the graph; 0 where the engine does not say."""
    trace_seconds: float
    compile_seconds: float


def compile(
    step: Callable[..., Any],
    donate: bool = False,
    capture: Capture = "auto",
    on_recompile: OnRecompile = "warn",
    *,
    backend: Backend = "inductor",
) -> "Compiled":
    """Compile a pure function of trees, a step above all, into a function of the same signature.

    Args:
        step: `step(state, batch) -> (state, metrics)`, or any pure function of trees of tensors. What is no tensor (a number in a
            batch) is a constant of the graph: another value is another capture.
        donate: Consume the first argument: its memory is reused for the first result, which must have the same structure. The state
            passed in must not be used again; purestep refuses it, its tensors hold the new values.
        capture: `"trace"`, `"dynamo"`, or `"auto"`: trace.
        on_recompile: What to do when another structure, shape, dtype or device needs another capture.
        backend: What runs the graph: compiled kernels, or the graph as it is.

    Raises:
        ValueError: If a choice is unknown.
    """
    for what, value, known in (
        ("capture", capture, ("auto", "trace", "dynamo")),
        ("on_recompile", on_recompile, ("warn", "error", "ignore")),
        ("backend", backend, ("inductor", "aot_eager", "eager")),
    ):
        if value not in known:
            raise ValueError(f"compile: {what}={value!r} is unknown (known: {', '.join(known)})")
    return Compiled(step, donate, "dynamo" if capture == "dynamo" else "trace", on_recompile, backend)


class Compiled:
    """A captured function: call it like the function it was made from; `explain` says what was captured, and why.

    Its cache of graphs is all that ever changes in it.
    """

    def __init__(self, step: Callable[..., Any], donate: bool, engine: str, on_recompile: str, backend: str):
        self._step, self._donate, self._engine = step, donate, engine
        self._on_recompile, self._backend = on_recompile, backend
        self._graphs: dict[Any, _Graph] = {}
        self._records: list[CaptureRecord] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, capturing it first where this kind of arguments is new."""
        if args:
            check_not_consumed(args[0], "compiled step")
        leaves, spec = tree.flatten((args, kwargs))
        key = (spec, tuple([_kind(leaf) for leaf in leaves]))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(key, leaves, spec)
        result = graph(leaves)
        if self._donate:
            mark_consumed(args[0])
        return result

    def explain(self) -> list[CaptureRecord]:
        """All captures so far, in order."""
        return list(self._records)

    def _capture(self, key: Any, leaves: list[Any], spec: Any) -> "_Graph":
        reason = self._why(key)
        if self._graphs and self._on_recompile != "ignore":
            message = f"the compiled step needs capture number {len(self._graphs) + 1}: {reason}"
            if self._on_recompile == "error":
                raise RecompileError(f"{message}; pad batches to few sizes, or pass on_recompile='warn'")
            warnings.warn(message, stacklevel=3)
        build = _by_trace if self._engine == "trace" else _by_dynamo
        graph, record = build(self._step, leaves, spec, self._donate, self._backend)
        self._records.append(dataclasses.replace(record, reason=reason))
        return graph

    def _why(self, key: Any) -> str:
        if not self._graphs:
            return "first call"
        spec, kinds = key
        known = [old for old in self._graphs if old[0] == spec]
        if not known:
            return "the structure of the arguments changed"
        names = tree.paths(tree.unflatten(spec, kinds)) if not any(isinstance(kind, tuple) for kind in kinds) else None
        nearest = min((old[1] for old in known), key=lambda old: sum(a != b for a, b in zip(old, kinds, strict=True)))
        i = next(i for i, (a, b) in enumerate(zip(nearest, kinds, strict=True)) if a != b)
        where = names[i] if names else f"leaf {i}"
        return f"{where} was {nearest[i]}, is {kinds[i]}"


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What the compiled code relies on and does not check itself."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} on {self.device}"


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _Kind(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    try:
        hash(leaf)
    except TypeError:
        raise CaptureError(
            f"a leaf of type {type(leaf).__name__} is neither a tensor nor hashable, so it cannot be part of a captured step"
        ) from None
    return _Constant(type(leaf), leaf)


@dataclasses.dataclass(frozen=True)
class _Constant:
    type: type
    value: Any


_Graph = Callable[[list[Any]], Any]


def _by_trace(step: Callable[..., Any], leaves: list[Any], spec: Any, donate: bool, backend: str) -> tuple[_Graph, CaptureRecord]:
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    num_state = tree.structure(tree.unflatten(spec, leaves)[0][0]).num_leaves if donate else 0
    out: dict[str, Any] = {}

    def flat(*tensors: Tensor) -> list[Tensor]:
        filled = list(leaves)
        for i, tensor in zip(positions, tensors, strict=True):
            filled[i] = tensor
        args, kwargs = tree.unflatten(spec, filled)
        results, out["spec"] = tree.flatten(step(*args, **kwargs))
        out["constants"] = [None if isinstance(x, Tensor) else x for x in results]
        results = [x for x in results if isinstance(x, Tensor)]
        return _write_back(filled[:num_state], results, tensors) if donate else results

    began = time.perf_counter()
    example = [leaves[i].detach().clone() for i in positions]
    try:
        with torch.autograd.set_multithreading_enabled(False):  # the backward runs on this thread, or context is lost
            graph = make_fx(flat)(*example)
    except RuntimeError as error:
        raise CaptureError(_explain_failure(error)) from error
    traced = time.perf_counter()
    run = _compile_graph(graph, [leaves[i].detach() for i in positions], backend)

    def call(leaves: list[Any]) -> Any:
        with torch.no_grad():  # the graph holds its backward already
            results = list(run(*[leaves[i] for i in positions]))
        if donate:
            results = [*leaves[:num_state], *results]
        fresh = iter(results)
        return tree.unflatten(out["spec"], [next(fresh) if x is None else x for x in out["constants"]])

    return call, CaptureRecord("trace", "", len(graph.graph.nodes), traced - began, time.perf_counter() - traced)


def _write_back(old: list[Tensor], results: list[Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Write the new state into the memory of the old one, at the end of the graph; returns what is left to return."""
    if len(results) < len(old) or any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(old, results, strict=False)):
        raise CaptureError("donate=True: the first result must have the structure, shapes and dtypes of the first argument")
    # a result that is another input is copied before anything is overwritten
    fresh = [new if new is a or not any(new is x for x in inputs) else new.clone() for a, new in zip(old, results, strict=False)]
    rest = [new.clone() if any(new is x for x in inputs) else new for new in results[len(old) :]]
    for a, new in zip(old, fresh, strict=True):
        if new is not a:
            a.copy_(new)
    return rest


def _compile_graph(graph: torch.fx.GraphModule, example: list[Tensor], backend: str) -> Callable[..., Any]:
    if backend == "eager":
        return graph
    with torch.no_grad():
        if backend == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, example)
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, example)  # type: ignore[return-value]


def _explain_failure(error: RuntimeError) -> str:
    text = str(error)
    if "_local_scalar_dense" in text or "tracing tensor" in text:
        return (
            "the step reads the value of a tensor on the host (.item(), int(), bool(), or a tensor as a size), which a captured graph "
            f"would freeze; compute with tensors instead (torch.where), or pass the number in the batch as a Python int. Cause: {text}"
        )
    return f"the step could not be traced: {text}"


def _by_dynamo(step: Callable[..., Any], leaves: list[Any], spec: Any, donate: bool, backend: str) -> tuple[_Graph, CaptureRecord]:
    if donate:
        raise CaptureError("capture='dynamo' cannot donate; use capture='trace'")
    began = time.perf_counter()
    compiled = torch.compile(step, fullgraph=True, backend=backend)

    def call(leaves: list[Any]) -> Any:
        args, kwargs = tree.unflatten(spec, leaves)
        return compiled(*args, **kwargs)

    return call, CaptureRecord("dynamo", "", 0, time.perf_counter() - began, 0.0)
