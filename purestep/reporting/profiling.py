"""Where the time of a run goes: a trace of torch's profiler for some batches, and a table of the parts of the loop."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..core.event import Event
from ..core.hook import Stage
from .memory import memory_table

_MOST_OPERATIONS = 15


class Profile:
    """Listener and spans: `fit(..., listeners=[..., profile], span=profile.span)` profiles the batches from `first` up to `last`.

    When they are over it writes `trace.json.gz`, for Perfetto or `chrome://tracing`, and `profile.txt`: seconds by part of the loop
    (`data`: waiting for a batch; `step`; `validation`; each listener by its name: log, checkpoints), the operations that took longest,
    and memory. While it is at work the device is waited for after each part, so that each has its own time; before and after, it is
    not. Where ranks share the batches each writes its own files, those other than the first into `rank-00001` and so on.

    Args:
        first: Begin after this many batches, counted from the beginning of training; the first ones may compile.
        last: End after this many.
        directory: For the two files; made if missing.
        clock: Seconds that never go back.
    """

    hears_errors = True
    on_every_rank = True

    def __init__(self, first: int, last: int, directory: str | os.PathLike, *, clock: Callable[[], float] = time.perf_counter):
        if not 0 <= first < last:
            raise ValueError(f"Profile: first must be at least 0 and last larger, got {first} and {last}")
        self.first, self.last, self.directory = first, last, os.path.abspath(os.fspath(directory))
        self._clock = clock
        self.seconds: dict[str, list[float]] = {}
        """Times of each part."""
        self._profiler: Any = None
        self._began, self._batches = 0.0, 0

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Take the time of a part of the loop."""
        if self._profiler is None:
            yield
            return
        begin = self._clock()
        with torch.profiler.record_function(name):
            try:
                yield
            finally:
                _wait()
        if self._profiler is not None:  # not the part in which it ended
            self.seconds.setdefault(name, []).append(self._clock() - begin)

    def __call__(self, event: Event) -> None:
        """Begin and end at the batches that were asked for, or where the run ends."""
        if self._profiler is not None and (event.batch_count >= self.last or event.stage is Stage.AFTER_TRAINING):
            self._end(event)
            return
        begins = event.stage in (Stage.BEFORE_TRAINING, Stage.AFTER_BATCH) and self.first <= event.batch_count < self.last
        if begins and self._profiler is None:
            self._begin(event)

    def _begin(self, event: Event) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        _wait()
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=True)
        self._profiler.start()
        self._began, self._batches = self._clock(), event.batch_count

    def _end(self, event: Event) -> None:
        whole, batches = self._clock() - self._began, event.batch_count - self._batches
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        directory = os.path.join(self.directory, f"rank-{rank:05d}") if (rank := _rank()) else self.directory
        os.makedirs(directory, exist_ok=True)
        profiler.export_chrome_trace(os.path.join(directory, "trace.json.gz"))
        by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        operations = profiler.key_averages().table(sort_by=by, row_limit=_MOST_OPERATIONS)
        text = "\n\n".join([f"{batches} batches in {whole:.4g} s", self.table(whole), operations, memory_table(event.state)])
        with open(os.path.join(directory, "profile.txt"), "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def table(self, whole: float) -> str:
        """Seconds by part, the longest first.

        Args:
            whole: All seconds, of which the parts are shares.
        """
        rows = sorted(((name, len(times), sum(times)) for name, times in self.seconds.items()), key=lambda row: -row[2])
        rows.append(("the rest", 1, max(whole - sum(total for _, _, total in rows), 0.0)))
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{'part':<{width}}  {'times':>7}  {'seconds':>9}  {'mean ms':>9}  {'share':>6}"]
        lines += [
            f"{name:<{width}}  {count:>7}  {total:>9.4f}  {1000 * total / count:>9.3f}  {total / whole if whole else 0:>6.1%}"
            for name, count, total in rows
        ]
        return "\n".join(lines)


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
