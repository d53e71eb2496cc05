"""When a checkpoint is due: on the transition of a counter, never again while it stands still; and why the last one is written."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .event import Event, crossed, is_preemption


class Moment(NamedTuple):
    """Where a run is: updates applied, passes over the data, seconds on a clock that never goes back."""

    step: int
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Cadence:
    """Frequencies of checkpoints; one is due as soon as any of them says so."""

    every_n_steps: int | None = None
    every_n_epochs: int | None = None
    every_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:  # `not >` rather than `<=`: also rejects nan
                raise ValueError(f"{name} must be positive, got {value}")


def is_due(cadence: Cadence, last: Moment, now: Moment) -> bool:
    """Whether a multiple of a frequency lies in `(last, now]`."""
    return (
        crossed(cadence.every_n_steps, last.step, now.step)
        or crossed(cadence.every_n_epochs, last.epoch, now.epoch)
        or (cadence.every_seconds is not None and now.seconds - last.seconds >= cadence.every_seconds)
    )


def reason_at_end(event: Event) -> Literal["final", "preemption", "periodic"]:
    """Why the checkpoint at the end of a run is written: one that was stopped early will go on, and need not be kept for ever."""
    if event.target_reached:
        return "final"
    return "preemption" if is_preemption(event.stop_reason) else "periodic"
