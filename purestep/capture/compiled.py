"""`compile`: the cache of captured graphs, and what decides whether a call needs another one.

`trace` runs the step once on copies of its arguments and records every operation (JAX's way), then compiles the record with inductor: it
takes models that differentiate inside their forward, and a call costs one flatten, one look-up and one flat call. `dynamo` is
`torch.compile(fullgraph=True)`.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ..core import tree
from ..core.state import check_not_consumed, mark_consumed
from ..core.step import form_at
from ..errors import RecompileError
from .backends import BACKENDS, Backend, Compiler
from .donation import Call, give, remember
from .graph import CaptureRecord, Graph
from .key import difference, kind, surroundings
from .recording import capture_by_dynamo, capture_by_trace
from .replay import CudaGraphs, Mode
from .sizes import Dynamic, Sizes, sizes_of

Capture = Literal["auto", "trace", "dynamo"]
OnRecompile = Literal["warn", "error", "ignore"]
Storage = Literal["leaves", "flat"]


def compile(
    step: Callable[..., Any],
    donate: bool = False,
    capture: Capture = "auto",
    on_recompile: OnRecompile = "warn",
    *,
    backend: Backend = "inductor",
    max_captures: int = 1,
    cache: str | os.PathLike | None = None,
    storage: Storage = "leaves",
    options: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    mode: Mode = "default",
) -> "Compiled":
    """Compile a pure function of trees, a step above all, into a function of the same signature.

    Args:
        step: `step(state, batch) -> (state, metrics)`, or any pure function of trees of tensors. What is no tensor (a number in a
            batch) is a constant of the graph: another value is another capture.
        donate: Consume the first argument: its memory is reused for the first result, which must have the same structure. The state
            passed in must not be used again; purestep refuses it, its tensors hold the new values.
        capture: `"trace"`, `"dynamo"`, or `"auto"`: trace.
        on_recompile: What to do when another structure, shape, dtype or device needs a capture beyond `max_captures`.
        backend: What runs the graph: compiled kernels, or the graph as it is.
        max_captures: How many captures are expected: one for each size of batch, say. (An accumulating step has two forms, each of
            which may have so many.)
        cache: A folder for compiled code. A later process that is given the same folder, or a copy of it on a machine of the same
            kind, records the step but compiles nothing. None is torch's own folder, which stays as long as the temporary files do.
            Code is loaded from it, so it must be as trustworthy as the program.
        storage: `"flat"` keeps leaves that are updated alike (parameters, each moment, an average) in one buffer each, and updates each
            buffer by one operation. Paths and checkpoints stay as they are: the leaves are views. The first call copies the state.
        options: Settings of inductor for these graphs alone, by the names that `torch.compile(options=...)` takes.
        dynamic: Sizes of the arguments after the first that one graph serves in a range: by pattern of the path of a leaf in its
            argument, then by axis, `torch.export.Dim(name, min=..., max=...)` or `(name, min, max)`, of 2 at least. Axes of one name have
            one size. What lies outside, or is not contiguous, gets a graph of its own. A step that takes such a size as a number (a loop
            over it, `int(size)`), or reads numbers from tensors, is refused; one that decides by a size gets a graph for each outcome.
        mode: `"reduce-overhead"` replays a donated step as a CUDA graph where its state stays in place. A graph that reads numbers on
            the host, serves a range of sizes or computes elsewhere than on one CUDA device is run as by default; `explain` says why.

    Raises:
        ValueError: If a choice is unknown, or choices exclude each other.
    """
    for what, value, known in (
        ("capture", capture, ("auto", "trace", "dynamo")),
        ("on_recompile", on_recompile, ("warn", "error", "ignore")),
        ("backend", backend, BACKENDS),
        ("storage", storage, ("leaves", "flat")),
        ("mode", mode, ("default", "reduce-overhead")),
    ):
        if value not in known:
            raise ValueError(f"compile: {what}={value!r} is unknown (known: {', '.join(known)})")
    if isinstance(max_captures, bool) or not isinstance(max_captures, int) or max_captures < 1:
        raise ValueError(f"compile: max_captures must be a whole number of at least 1, got {max_captures!r}")
    if storage == "flat" and not donate:
        raise ValueError("compile: storage='flat' keeps the state in its own memory, so it needs donate=True")
    if mode == "reduce-overhead" and (not donate or capture == "dynamo"):
        raise ValueError(
            "compile: mode='reduce-overhead' replays a traced step where its state stays; it needs donate=True and no capture='dynamo'"
        )
    if options and (backend != "inductor" or capture == "dynamo"):
        raise ValueError("compile: options are inductor's, for a traced graph; they need backend='inductor' and no capture='dynamo'")
    engine = "dynamo" if capture == "dynamo" else "trace"
    sizes = sizes_of(dynamic, capture, storage)
    compiler = Compiler(backend, cache, storage, dict(options or {}), CudaGraphs() if mode == "reduce-overhead" else None)
    return Compiled(step, donate, engine, on_recompile, max_captures, compiler, sizes)


class Compiled:
    """A captured function: call it like the function it was made from; `explain` says what was captured, and why.

    Its cache of graphs is all that ever changes in it.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        donate: bool,
        engine: str,
        on_recompile: str,
        max_captures: int,
        compiler: Compiler,
        sizes: Sizes | None = None,
    ):
        self._step, self._donate, self._engine = step, donate, engine
        self._on_recompile, self._max_captures, self._compiler = on_recompile, max_captures, compiler
        self._sizes = sizes
        self._graphs: dict[Any, list[Graph]] = {}
        self._records: list[CaptureRecord] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, capturing it first where this kind of arguments is new."""
        if args:
            check_not_consumed(args[0], "compiled step")
        elif self._donate or hasattr(self._step, "at"):
            raise TypeError("compiled step: give the state as the first positional argument")
        step = form_at(self._step, args[0]) if args else self._step
        if not self._donate:
            leaves, spec = tree.flatten((args, kwargs))
            return self._graph((step, spec, surroundings()), leaves).run(leaves, None, [])
        state = args[0]
        rest, rest_spec = tree.flatten((args[1:], kwargs))
        kinds = [kind(leaf) for leaf in rest]
        call = Call(self, step, surroundings(), rest_spec, kinds if self._sizes is None else self._sizes.kinds(rest_spec, rest, kinds))
        origin = getattr(state, "_origin", None)
        if origin is None or not origin.fits(call, state):
            leaves, spec = tree.flatten((args, kwargs))
            graph = self._graph((step, spec, call.around), leaves)
            state, origin = give(state, leaves[: len(leaves) - len(rest)], call, graph)
        try:
            result = origin.run([*origin.leaves, *origin.apart(rest)], state, origin.buffers)
        finally:  # a graph that fails half-way, out of memory, may have overwritten a part of it
            mark_consumed(args[0])
        remember(result[0], origin)
        return result

    def warmup(self, batches: Iterable[Any], *, state: Any) -> None:
        """Capture the step for these batches before training begins; only what they are matters, not what is in them.

        The state is neither changed nor consumed. An accumulating step is captured in both its forms.
        """
        for batch in batches:
            for step in dict.fromkeys((form_at(self._step, state), self._step)):
                leaves, spec = tree.flatten(((state, batch), {}))
                key = self._key((step, spec, surroundings()), leaves)
                if self._known(key, leaves) is None:
                    graph = self._capture(key, leaves)
                    if self._engine == "dynamo":  # which captures when it is called, and does not donate
                        graph.run(leaves, None, [])

    def explain(self) -> list[CaptureRecord]:
        """All captures so far, in order."""
        return list(self._records)

    def _graph(self, form: tuple, leaves: list[Any]) -> Graph:
        key = self._key(form, leaves)
        graph = self._known(key, leaves)
        if graph is None:
            self._check_expected(key)
            graph = self._capture(key, leaves)
        return graph

    def _key(self, form: tuple, leaves: list[Any]) -> tuple:
        """What a graph is kept under: step, structure, surroundings, and the kind of each leaf."""
        kinds = [kind(leaf) for leaf in leaves]
        return (*form, tuple(kinds if self._sizes is None else self._sizes.kinds(form[1], leaves, kinds, num_before=1)))

    def _known(self, key: Any, leaves: list[Any]) -> Graph | None:
        return next((graph for graph in self._graphs.get(key, ()) if graph.holds(leaves)), None)

    def _check_expected(self, key: Any) -> None:
        """Say what was asked to be said about one capture more."""
        count = sum(len(graphs) for known, graphs in self._graphs.items() if known[0] == key[0])
        if count < self._max_captures or self._on_recompile == "ignore":
            return
        message = (
            f"the compiled step needs capture number {len(self._records) + 1}: {self._why(key)}; pad batches to few sizes, allow more by "
            "max_captures, or give a range of sizes one graph by dynamic"
        )
        if self._on_recompile == "error":
            raise RecompileError(f"{message}, or pass on_recompile='warn'")
        warnings.warn(message, stacklevel=4)

    def _capture(self, key: Any, leaves: list[Any]) -> Graph:
        step, spec, *_ = key
        reason = self._why(key)
        capture = capture_by_trace if self._engine == "trace" else capture_by_dynamo
        symbols = [] if self._sizes is None else [self._sizes.symbols(key[3], leaves)]
        graph = capture(step, leaves, spec, self._donate, self._compiler, *symbols)
        self._graphs.setdefault(key, []).append(graph)
        self._records.append(dataclasses.replace(graph.record, reason=reason))
        return graph

    def _why(self, key: Any) -> str:
        if not self._graphs:
            return "first call"
        if key in self._graphs:
            return self._graphs[key][-1].broken()
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
