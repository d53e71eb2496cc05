"""How fast a run is, measured between its reports; the only numbers of a log that the clock decides."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..core.event import Event
from ..core.hook import Stage
from .pace import Goal, goal, remaining_seconds
from .record import Record

PACE_KEYS = (
    "training/steps_per_s",
    "training/batches_per_s",
    "training/samples_per_s",
    "training/eta_s",
    "training/progress_fraction",
    "training/target_steps",
    "training/remaining_steps",
    "training/target_epochs",
    "training/epoch_fraction",
)
"""Names of what a `Pace` adds to a record."""
_REPORTS_OF_A_RATE = 20


class Pace(NamedTuple):
    """Speed over the latest reports; None where there is nothing to divide."""

    progress: Goal
    steps_per_s: float | None
    batches_per_s: float | None
    samples_per_s: float | None
    eta_s: float | None
    target: Mapping[str, float] = {}
    """What the run is to reach and how far it is, in the unit of its target, by the names of `PACE_KEYS`."""

    def scalars(self) -> dict[str, float]:
        """What is known, by the names of `PACE_KEYS`."""
        fraction = None if not self.progress.total else min(self.progress.done / self.progress.total, 1.0)
        values = (self.steps_per_s, self.batches_per_s, self.samples_per_s, self.eta_s, fraction)
        return {name: value for name, value in zip(PACE_KEYS, values, strict=False) if value is not None} | dict(self.target)


class Meter:
    """Count batches and samples on the host, and look at the clock at each report.

    A report has just waited for the device, so the time between two of them is that of the work between them. The first batch, which may
    have been compiled, is part of no rate.

    Args:
        count_samples: Samples of a batch, from what the host knows of it.
        clock: Seconds that never go back.
    """

    def __init__(self, *, count_samples: Callable[[Any], int] | None = None, clock: Callable[[], float] = time.monotonic):
        self._count_samples = num_samples if count_samples is None else count_samples
        self._clock = clock
        self._samples = 0
        self._reports: collections.deque[_Report] = collections.deque(maxlen=_REPORTS_OF_A_RATE)

    def note(self, event: Event) -> None:
        """Count an event; every one, before `measure`."""
        if event.stage is Stage.BEFORE_TRAINING:
            self._reports.clear()
        if event.stage is Stage.AFTER_BATCH:
            self._samples += self._count_samples(event.batch)
            if not self._reports:
                self._reports.append(_Report(self._clock(), event.batch_count, self._samples, None))

    def measure(self, record: Record, event: Event) -> Pace:
        """The pace at a report, from the oldest of the latest reports to this one."""
        now = _Report(self._clock(), record.batch, self._samples, record.step)
        before = self._reports[0] if self._reports else now
        steps_before = next((report for report in self._reports if report.step is not None), now)
        self._reports.append(now)
        progress = goal(record.batch, record.step, event.target, event.num_batches)
        return Pace(
            progress,
            _rate((now.step or 0) - (steps_before.step or 0), now.seconds - steps_before.seconds),
            _rate(now.batch - before.batch, now.seconds - before.seconds) if now.batch > before.batch else None,
            _rate(now.samples - before.samples, now.seconds - before.seconds) if now.batch > before.batch else None,
            remaining_seconds(progress, now.batch - before.batch, now.seconds - before.seconds),
            _target(record, event.target),
        )


@dataclasses.dataclass(frozen=True)
class _Report:
    """A point from which a rate is measured."""

    seconds: float
    batch: int
    samples: int
    step: int | None  # unknown at the first batch, where nobody asks the device


def _target(record: Record, target: Mapping[str, int]) -> dict[str, float]:
    steps, epochs = target.get("num_steps"), target.get("num_epochs")
    found: dict[str, float] = (
        {} if steps is None else {"training/target_steps": steps, "training/remaining_steps": max(steps - record.step, 0)}
    )
    found |= {} if epochs is None else {"training/target_epochs": epochs, "training/epoch_fraction": min(record.epoch / epochs, 1.0)}
    return {name: float(value) for name, value in found.items()}


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count >= 0 and seconds > 0 else None


def num_samples(batch: Any) -> int:
    """Samples of a batch, from shapes alone: its `num_graphs`, or the rows of its first tensor; padding counts."""
    graphs = getattr(batch, "num_graphs", None)
    if graphs is not None:
        return graphs
    first = next((leaf for leaf in tree.leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), None)
    return 1 if first is None else first.shape[0]
