"""CUDA graphs: a donated step is recorded where its state lives, and replayed from then on, which takes one launch instead of hundreds.

A recording reads and writes fixed addresses. With donation the state keeps its own; a batch is copied to where the recording read one, and
what a step returns beside the state is copied out, so that the next replay does not change it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, fx

T = TypeVar("T")
Mode = Literal["default", "reduce-overhead"]

MOST_PLACES = 4
"""How many states may take turns without being recorded anew; a recording keeps the memory of its batch."""


class CudaGraphs:
    """The recordings of one compiled function, which share memory: they never run at the same time, and leave nothing behind there."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._pools: dict[torch.device, Any] = {}

    def record(self, run: Callable[[], T], device: torch.device) -> tuple[Callable[[], None], T]:
        """Record what a function launches, without running it.

        Returns:
            What launches it all again, and what the function returned: tensors that will then hold its results.
        """
        with torch.cuda.device(device):
            pool = self._pools.setdefault(device, torch.cuda.graph_pool_handle())
            graph = torch.cuda.CUDAGraph()
            # threads that prepare batches may call CUDA meanwhile
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                results = run()
        return graph.replay, results


def obstacle(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Why a graph cannot be replayed, as a clause of a sentence; empty if it can."""
    devices = {x.device for x in inputs}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        devices |= {x.device for x in (value if isinstance(value, list | tuple) else [value]) if isinstance(x, Tensor)}
    if {device.type for device in devices} == {CudaGraphs.device_type} and len(devices) == 1:
        return ""
    return f"it computes on {', '.join(sorted(map(str, devices)))}, not on one CUDA device alone"


def replays_of(run: Callable[..., Any], batch: slice, graphs: CudaGraphs | None, reason: str) -> tuple["Replays | None", str]:
    """What replays a graph, if that was asked for and there is no reason against it; and a note of that for people."""
    if graphs is None:
        return None, ""
    return (None, f"not replayed: {reason}") if reason else (Replays(run, batch, graphs), "replayed as a CUDA graph")


class Replays:
    """The recordings of one graph, by where the state lives.

    Args:
        run: The graph, of flat arguments: the state (or buffers of it), the batch, the tensors that are closed over.
        batch: Which of them are the batch's, the others stay where they are from call to call.
    """

    def __init__(self, run: Callable[..., list[Tensor]], batch: slice, graphs: CudaGraphs) -> None:
        self._run, self._batch, self._graphs = run, batch, graphs
        self._at: dict[tuple[int, ...], Replay] = {}

    def at(self, state: Sequence[Tensor]) -> "Replay":
        """The recording, or the place for one, for a state that lives here."""
        place = tuple(x.data_ptr() for x in state)
        found = self._at.pop(place, None) or Replay(self._run, self._batch, self._graphs)
        self._at[place] = found  # the last is the latest
        while len(self._at) > MOST_PLACES:
            del self._at[next(iter(self._at))]
        return found


class Replay:
    """A graph at one place: the first call runs it, which loads its kernels and tunes them; the second records it."""

    def __init__(self, run: Callable[..., list[Tensor]], batch: slice, graphs: CudaGraphs) -> None:
        self._run, self._batch, self._graphs = run, batch, graphs
        self._has_run = False
        self._recording: _Recording | None = None

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the graph on flat arguments, in whatever way."""
        if not self._has_run:
            self._has_run = True
            return self._run(*tensors)
        if self._recording is None:
            self._recording = self._record(tensors)
        inputs = self._recording.inputs
        if inputs:
            torch._foreach_copy_(inputs, [_once(x) for x in tensors[self._batch]], non_blocking=True)
        self._recording.replay()
        return self._recording.results.copied_out()

    def _record(self, tensors: tuple[Tensor, ...]) -> "_Recording":
        with torch.inference_mode(False):  # what is made in inference mode cannot be written to out of it
            batch = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in tensors[self._batch]]
        given = list(tensors)
        given[self._batch] = batch
        replay, results = self._graphs.record(lambda: _Packed(self._run(*given)), tensors[0].device)
        return _Recording([_once(x) for x in batch], replay, results)


class _Recording(NamedTuple):
    inputs: list[Tensor]
    """Where a batch is read."""
    replay: Callable[[], None]
    results: "_Packed"
    """What a replay leaves beside the state."""


def _once(x: Tensor) -> Tensor:
    """A view in which each element of an expanded tensor is there once, so that it can be written."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    return x


class _Packed:
    """Results laid together by dtype, so that copying them out takes one launch for each dtype, not for each metric."""

    def __init__(self, results: Sequence[Tensor]) -> None:
        by_dtype: dict[torch.dtype, list[int]] = {}
        for number, x in enumerate(results):
            by_dtype.setdefault(x.dtype, []).append(number)
        self._order = [number for numbers in by_dtype.values() for number in numbers]
        self._shapes = [[results[number].shape for number in numbers] for numbers in by_dtype.values()]
        self._packs = [torch.cat([results[number].reshape(-1) for number in numbers]) for numbers in by_dtype.values()]

    def copied_out(self) -> list[Tensor]:
        """The results in memory of their own, in the order in which they were given."""
        found: list[Any] = [None] * len(self._order)
        copies = [
            part.view(shape)
            for pack, shapes in zip(self._packs, self._shapes, strict=True)
            for part, shape in zip(pack.clone().split([shape.numel() for shape in shapes]), shapes, strict=True)
        ]
        for number, copy in zip(self._order, copies, strict=True):
            found[number] = copy
        return found
