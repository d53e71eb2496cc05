"""`compile`: the cache of captured graphs, and what decides whether a call needs another one.

`trace` runs the step once on stand-ins and records every operation (JAX's way), then compiles the record with inductor: it takes models
that differentiate inside their forward, and a call costs one flatten, one look-up and one flat call. `dynamo` is
`torch.compile(fullgraph=True)`.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal

from ..core import tree
from ..core.state import check_not_consumed, mark_consumed
from ..core.step import form_at
from ..errors import RecompileError
from .backends import BACKENDS, Backend
from .donation import check_own_memory, mark_own_memory
from .graph import CaptureRecord, Graph
from .key import difference, kind, surroundings
from .recording import capture_by_dynamo, capture_by_trace

Capture = Literal["auto", "trace", "dynamo"]
OnRecompile = Literal["warn", "error", "ignore"]


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
        ("backend", backend, BACKENDS),
    ):
        if value not in known:
            raise ValueError(f"compile: {what}={value!r} is unknown (known: {', '.join(known)})")
    return Compiled(step, donate, "dynamo" if capture == "dynamo" else "trace", on_recompile, backend)


class Compiled:
    """A captured function: call it like the function it was made from; `explain` says what was captured, and why.

    Its cache of graphs is all that ever changes in it.
    """

    def __init__(self, step: Callable[..., Any], donate: bool, engine: str, on_recompile: str, backend: Backend):
        self._step, self._donate, self._engine = step, donate, engine
        self._on_recompile, self._backend = on_recompile, backend
        self._graphs: dict[Any, list[Graph]] = {}
        self._records: list[CaptureRecord] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, capturing it first where this kind of arguments is new."""
        if args:
            check_not_consumed(args[0], "compiled step")
        elif self._donate or hasattr(self._step, "at"):
            raise TypeError("compiled step: give the state as the first positional argument")
        step = form_at(self._step, args[0]) if args else self._step
        leaves, spec = tree.flatten((args, kwargs))
        key = (step, spec, surroundings(), tuple([kind(leaf) for leaf in leaves]))
        graph = next((graph for graph in self._graphs.get(key, ()) if graph.holds(leaves)), None)
        if graph is None:
            graph = self._capture(key, leaves)
        if self._donate:
            check_own_memory(args[0])
        result = graph.run(leaves)
        if self._donate:
            mark_consumed(args[0])
            mark_own_memory(result[0])
        return result

    def explain(self) -> list[CaptureRecord]:
        """All captures so far, in order."""
        return list(self._records)

    def _capture(self, key: Any, leaves: list[Any]) -> Graph:
        step, spec, *_ = key
        reason = self._why(key)
        if any(known == step for known, *_ in self._graphs) and self._on_recompile != "ignore":
            message = f"the compiled step needs capture number {len(self._records) + 1}: {reason}"
            if self._on_recompile == "error":
                raise RecompileError(f"{message}; pad batches to few sizes, or pass on_recompile='warn'")
            warnings.warn(message, stacklevel=3)
        capture = capture_by_trace if self._engine == "trace" else capture_by_dynamo
        graph = capture(step, leaves, spec, self._donate, self._backend)
        self._graphs.setdefault(key, []).append(graph)
        self._records.append(dataclasses.replace(graph.record, reason=reason))
        return graph

    def _why(self, key: Any) -> str:
        if not self._graphs:
            return "first call"
        if key in self._graphs:
            return f"a number that the step reads from a tensor changed: {self._graphs[key][-1].reads()}"
        step, spec, around, kinds = key
        if all(known != step for known, *_ in self._graphs):
            return "another form of the step, for batches that leave an accumulation window open"
        same = [old for old in self._graphs if old[:2] == (step, spec)]
        if not same:
            return "the structure of the arguments changed"
        nearest = min(same, key=lambda old: sum(a != b for a, b in zip(old[3], kinds, strict=True)))
        if nearest[3] == kinds:
            return f"autocast, default dtype or determinism changed from {nearest[2]} to {around}"
        return difference(spec, nearest[3], kinds)
