"""What a listener hears: frozen events of the loop, after the step has returned.

Listeners are callables on events. They run on the host, cannot change training, and may ask it to stop.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .hook import Stage
from .state import TrainState


@dataclasses.dataclass(frozen=True)
class Event:
    """One moment of a run.

    A listener hears SETUP and BEFORE_TRAINING once, BEFORE_EPOCH, AFTER_BATCH, AFTER_VALIDATION and AFTER_EPOCH each time, and
    AFTER_TRAINING at the end; a run whose target is already reached gives SETUP alone. All listeners hear all of these, so one asks
    `event.stage` first.

    The plain numbers are known without looking at the device. `step_count` and the metrics wait for it: a listener that acts rarely
    asks `step_bound` first.

    Example:
        >>> def report(event):
        ...     if event.stage is ps.Stage.AFTER_EPOCH:
        ...         print(f"epoch {event.epoch_count}: loss {float(event.metrics['loss/total']):.3g}")
        ...     if event.stage is ps.Stage.AFTER_VALIDATION and event.validation["loss/total"] < 0.01:
        ...         return ps.Stop("good enough")
    """

    stage: Stage
    state: TrainState
    batch_count: int
    epoch_count: int
    epoch_step_count: int
    step_bound: int
    """No more updates than this can have been applied."""
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of the latest batch, 0-d tensors."""
    validation: Mapping[str, float] | None = None
    """Summary of the validation that belongs to this moment."""
    num_batches: int | None = None
    """Batches of an epoch, where known."""
    target: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Where the run ends: `{"num_epochs": n}`, `{"num_steps": n}` or `{"num_batches": n}`; empty where only time or a listener ends it."""
    batch: Any = None
    """Of AFTER_BATCH, on the device of the state; of a step that failed, with its `error`; else None."""
    stop_reason: str | None = None
    """Why the run ends, at AFTER_TRAINING, and at a validation that no cadence asked for, which is made because the run ends: the target's
    name, or what a listener gave to `Stop`."""
    error: Exception | None = None
    """What ended the run, for those who asked: a listener with a true attribute `hears_errors` is told once more, at AFTER_TRAINING, with
    the last state at which nothing was half done (where its memory was given away, the newest one: a validation that failed at it will not
    be made up). The others hear no AFTER_TRAINING of a run that failed."""

    @functools.cached_property
    def step_count(self) -> int:
        """Updates applied."""
        return int(self.state.counters.step_count)

    @property
    def target_reached(self) -> bool:
        """Whether the run has come to where it ends, rather than been stopped before; False where it has no target."""
        counts = {"num_epochs": lambda: self.epoch_count, "num_batches": lambda: self.batch_count, "num_steps": lambda: self.step_count}
        return bool(self.target) and all(counts[name]() >= number for name, number in self.target.items())


@dataclasses.dataclass(frozen=True)
class Stop:
    """Returned by a listener that wants the run to end at this point."""

    reason: str


def is_preemption(reason: str | None) -> bool:
    """Whether a run ends because a signal asked for it: then time is short, and the run will go on elsewhere.

    Example:
        >>> is_preemption("SIGTERM"), is_preemption("num_steps"), is_preemption(None)
        (True, False, False)
    """
    return reason is not None and reason.startswith("SIG")


Listener = Callable[[Event], Stop | None]
"""Called with every event; `Event` says which. Returns `Stop` to end the run there, or nothing."""


def crossed(every: int | None, before: int, after: int) -> bool:
    """Whether a count passed a multiple of `every` on its way from `before` to `after`.

    A cadence fires on the transition, never again while the count is parked.

    Example:
        >>> crossed(10, 9, 10), crossed(10, 10, 10), crossed(None, 0, 100)
        (True, False, False)
    """
    return every is not None and after // every > before // every
