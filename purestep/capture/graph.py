"""What a capture leaves behind: a callable of flat arguments, the guards it relies on, and a record for people."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .sizes import Condition
from .storage import Flat

Run = Callable[[list[Any], Any, list[Tensor]], Any]
"""From the leaves of all arguments, the state that is given away, if one is, and the buffers in which its leaves live."""


@dataclasses.dataclass(frozen=True)
class CaptureRecord:
    """One graph that was captured."""

    engine: str
    reason: str
    """Why it was captured: the first call, or what differed from the calls before."""
    nodes: int
    """Operations in the graph; 0 where the engine does not say."""
    host_reads: tuple[str, ...]
    """Numbers that the step reads from tensors on the host, with the line that reads them; checked before each call."""
    trace_seconds: float
    compile_seconds: float
    cache: str = ""
    """Whether compiled code was found on disk: `"hit"`, `"miss"`, or `"bypass"` where torch cannot keep it."""
    shared_calls: int = 0
    """How often a step calls code that is compiled once and serves many leaves; 0: each leaf has code of its own."""
    sizes: tuple[str, ...] = ()
    """Ranges of the sizes that one graph serves, and what else it relies on, which is checked before each call."""
    replay: str = ""
    """With `mode="reduce-overhead"`, whether the graph is replayed as a CUDA graph, or why it is not."""


@dataclasses.dataclass(frozen=True)
class HostRead:
    """A number that was read from a tensor while the graph was recorded."""

    value: Any
    where: str


@dataclasses.dataclass(frozen=True)
class Graph:
    """A captured graph for one kind of arguments."""

    run: Run
    record: CaptureRecord
    guarded: tuple[HostRead, ...] = ()
    guard: Callable[[list[Any]], Sequence[Tensor]] | None = None
    """Recomputes what was read, from the same leaves."""
    flat: Flat | None = None
    """Which leaves live in which buffer; the leaves of the state are all tensors then."""
    condition: Condition | None = None
    """What the graph relies on about the sizes that it serves in a range; None: nothing."""
    replayed_at: Callable[[list[Tensor]], Run] | None = None
    """What replays the graph on a state of these leaves as a CUDA graph; None: nothing does."""
    constants: Sequence[Tensor] = ()
    """The tensors that the step closes over."""

    def holds(self, leaves: list[Any]) -> bool:
        """Whether the sizes are served, and what was read on the host is still what it was."""
        if self.condition is not None and not self.condition.holds(leaves):
            return False
        if self.guard is None:
            return True
        return all(_same(tensor.item(), read.value) for tensor, read in zip(self.guard(leaves), self.guarded, strict=True))

    def broken(self) -> str:
        """What did not hold where another graph of the same kind is needed, for a message."""
        if self.condition is not None:
            return f"a decision that the step takes by a size came out differently, not: {'; '.join(map(str, self.condition.texts))}"
        return "a number that the step reads from a tensor changed: " + "; ".join(f"{read.value} at {read.where}" for read in self.guarded)


def _same(one: float, other: float) -> bool:
    """Equality under which NaN equals itself."""
    return one == other or (one != one and other != other)
