"""What a listener hears: frozen events of the loop, after the step has returned.

Listeners are callables on events. They run on the host, cannot change training, and may ask it to stop.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .hook import Stage
from .state import TrainState


@dataclasses.dataclass(frozen=True)
class Event:
    """One moment of a run."""

    stage: Stage
    state: TrainState
    batch_count: int
    """Mirrored on the host: known without looking at the device."""
    epoch_count: int
    epoch_step_count: int
    step_count: int
    """Updates applied; read from the device only when something is due, so between reports it may be that of the latest look."""
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of the latest batch: 0-d tensors; converting one waits for the device."""
    validation: Mapping[str, float] | None = None
    """Summary of a validation that has just been done."""
    num_batches: int | None = None
    """Batches an epoch, where known."""
    target: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Where the run ends: `num_epochs` or `num_steps`."""
    batch: Any = None


@dataclasses.dataclass(frozen=True)
class Stop:
    """Returned by a listener that wants the run to end after this batch."""

    reason: str


Listener = Callable[[Event], Stop | None]
