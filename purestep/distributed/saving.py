"""Checkpoints of a shared run: rank 0 writes, all know whether it succeeded; rank 0 reads, all begin with the same bits.

Which format, and where, is the business of the functions and the writer given from outside.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import tree
from ..core.cadence import Cadence, Moment, is_due, reason_at_end
from ..core.event import Event
from ..core.hook import Stage
from ..core.ranks import Ranks
from .collective import run_collective
from .local import cuts_of, gather_shards, gather_windows, room_for_shards, room_for_windows, scatter_windows
from .part_files import PartsWriter, WritePart, save_in_parts
from .parts import Cut, part_of
from .topology import Topology


class Writer(Protocol):
    """What `SharedCheckpoints` needs of a `Checkpointer`."""

    def save(self, state: Any, step: int | None = None, **about: Any) -> bool:
        """Write one checkpoint."""
        ...

    def check_start(self, label: int) -> None:
        """Refuse a run that begins below what is there."""
        ...

    def wait(self) -> None:
        """Return when it is safe."""
        ...

    def close(self) -> None:
        """Give up the root."""
        ...


class SharedCheckpoints:
    """Listener that has rank 0 write the checkpoints of all.

    The writer is made, asked and closed on rank 0 only; what it raises is raised on every rank. The time of `every_seconds` is that of
    rank 0. An exception that ends the run makes it save nothing: ranks may be gone, or stand at different batches, and each has no more
    than its share of what is in parts; so a run goes on from the newest checkpoint that was due.

    Args:
        make_writer: Makes the writer, for instance `lambda: ps.Checkpointer(root, keep_last=3)`; its own cadence is not used.
        topology: From `init`.
        every_n_steps: Save when so many more updates have been applied.
        every_n_epochs: Save when so many more epochs are complete.
        every_seconds: Save when so much time has passed.
        write_part: Have every rank write what only it holds, such as `checkpoint.shards.write_rank`; the writer needs `save_parts`. By
            default rank 0 gathers and writes everything.

    Example:
        >>> import tempfile
        >>> with SharedCheckpoints(lambda: ps.Checkpointer(tempfile.mkdtemp()), ps.distributed.init(), every_n_steps=100) as listener:
        ...     pass  # ps.fit(training, batches, num_steps=1000, listeners=[listener])
    """

    on_every_rank = True

    def __init__(
        self,
        make_writer: Callable[[], Writer],
        topology: Topology,
        *,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        every_seconds: float | None = None,
        write_part: WritePart | None = None,
    ):
        self.topology, self.write_part = topology, write_part
        self.cadence = Cadence(every_n_steps, every_n_epochs, every_seconds)
        self._writer = topology.ranks.together(lambda: _made(make_writer, write_part) if topology.rank == 0 else None)
        self._last = Moment(0, 0, time.monotonic())
        self._saved: tuple[int, int] | None = None

    def save(self, state: Any, step: int | None = None, **about: Any) -> None:
        """Save a state under a label; every rank calls this, and returns when rank 0 has taken the state over, or all have written.

        Raises:
            DistributedError: If it could not be written on another rank; a rank raises its own error.
        """
        ranks = self.topology.ranks
        if self.write_part is not None and ranks.world_size > 1:
            writer = self._writer if isinstance(self._writer, PartsWriter) else None
            save_in_parts(gather_windows(state, ranks), writer, self.write_part, ranks, step, about)
            return
        whole = gather_shards(gather_windows(state, ranks), ranks)
        self._on_rank_zero(lambda writer: writer.save(whole, step, **about))

    def __call__(self, event: Event) -> None:
        """Save if it is time."""
        if event.stage is Stage.SETUP:
            self._on_rank_zero(lambda writer: writer.check_start(event.batch_count))
            self._last = _moment_of(event, event.step_count)
        elif event.stage in (Stage.AFTER_BATCH, Stage.AFTER_EPOCH):
            if self._is_due(event):
                self._save_event(event, "periodic")
        elif event.stage is Stage.AFTER_TRAINING:
            if self._saved != (event.batch_count, event.epoch_count):
                self._save_event(event, reason_at_end(event))
            self._on_rank_zero(lambda writer: writer.wait())

    def close(self) -> None:
        """Wait for the save in flight, and give up the root."""
        self._on_rank_zero(lambda writer: writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif self._writer is not None:  # the other ranks may be gone
            self._writer.close()

    def _on_rank_zero(self, action: Callable[[Writer], Any]) -> None:
        self.topology.ranks.together(lambda: action(self._writer) if self._writer is not None else None)

    def _is_due(self, event: Event) -> bool:
        every_seconds, counts = self.cadence.every_seconds, dataclasses.replace(self.cadence, every_seconds=None)
        due = is_due(counts, self._last, _moment_of(event, event.step_bound))  # only then is the device asked
        due = due and is_due(counts, self._last, _moment_of(event, event.step_count))
        if every_seconds is not None:
            late = self.topology.rank == 0 and time.monotonic() - self._last.seconds >= every_seconds
            due = self.topology.ranks.settle("late" if late else None) is not None or due
        return due

    def _save_event(self, event: Event, reason: str) -> None:
        validation = {f"validation/{name}": value for name, value in (event.validation or {}).items()}
        self.save(event.state, event.batch_count, reason=reason, metrics={**event.metrics, **validation})
        self._last = _moment_of(event, event.step_count)
        self._saved = (event.batch_count, event.epoch_count)


def _moment_of(event: Event, step: int) -> Moment:
    return Moment(step, event.epoch_count, time.monotonic())


def _made(make_writer: Callable[[], Writer], write_part: WritePart | None) -> Writer:
    writer = make_writer()
    if write_part is not None and not isinstance(writer, PartsWriter):
        writer.close()
        raise TypeError(
            f"SharedCheckpoints: write_part needs a writer that can seal what all ranks wrote, with a method save_parts(state, step, "
            f"write=...); {type(writer).__name__} has none"
        )
    return writer


def restore(load: Callable[..., Any], like: Any, topology: Topology) -> Any:
    """Load a state on rank 0, and give it to all; every rank calls this.

    The checkpoint may be of a run on any number of ranks, one included.

    Args:
        load: `load(like, allow_missing=..., allow_extra=...)`, for instance `functools.partial(ps.load, root)`; called on rank 0.
        like: A state of this training, from `init`.
        topology: From `init`.

    Raises:
        DistributedError: If rank 0 could not load it; rank 0 raises the reason.
    """
    ranks = topology.ranks
    room, pattern = room_for_windows(room_for_shards(like), ranks)
    missing, extra = _patterns(room, pattern)

    def read() -> Any:
        return load(room, allow_missing=missing, allow_extra=extra) if ranks.rank == 0 else room

    state = ranks.together(read)
    if ranks.world_size > 1:
        cuts = cuts_of(like)
        devices = {path: leaf.device for path, leaf in tree.items(like) if isinstance(leaf, Tensor)}
        state = tree.map_with_path(lambda path, leaf: _received(leaf, devices.get(path), cuts.get(path), ranks), state)
    return scatter_windows(state, ranks)


def _received(leaf: Any, device: torch.device | None, cut: Cut | None, ranks: Ranks) -> Any:
    """A leaf of rank 0, bit for bit, or this rank's part of it."""
    if not isinstance(leaf, Tensor):
        return leaf
    whole = torch.empty(leaf.shape, dtype=leaf.dtype, device=device) if leaf.is_meta else leaf.detach().contiguous().clone()
    bits = whole.reshape(-1).view(torch.uint8)
    run_collective(lambda: dist.broadcast(bits, 0), "broadcast of a restored state")
    return whole if cut is None else part_of(whole, cut, ranks).clone()


_OWN = ("opt_state.sum_over_ranks.*", "opt_state.*.sum_over_ranks.*", "hook_state.windows_of_*")
"""Leaves that only shared runs have."""


def _patterns(room: Any, windows: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paths = tree.paths(room)
    sums = tuple(path for path in paths if ".sum_over_ranks." in path)
    return (*sums, *([windows] if windows else ())), _OWN
