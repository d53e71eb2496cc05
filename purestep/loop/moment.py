"""Where a run stands, and where it ends: records and arithmetic. Nothing here calls anything."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.event import Stop
from ..core.state import TrainState

_COUNTERS = ("batch_count", "epoch_count", "epoch_step_count", "step_count")


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where a run stands. The counters are what the host knows without asking the device."""

    state: TrainState
    batch_count: int
    epoch_count: int
    epoch_step_count: int
    step_count: int  # when the device was last asked,
    asked_at: int  # at this batch_count
    moved_at: int  # batch_count at which more updates than before were last seen
    history: tuple[dict[str, float], ...] = ()
    metrics: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    summary: Mapping[str, float] | None = None  # of the validation at this very point
    validated_at: int = -1  # batch_count of the latest validation
    whole: bool = True  # nothing that is due here has yet to be done to the state
    stop: Stop | None = None
    batch: Any = None  # what the next step is about to be given

    @property
    def step_bound(self) -> int:
        """No more updates than this can have been applied."""
        return self.step_count + self.batch_count - self.asked_at

    def replace(self, **changes: Any) -> "Moment":
        """The same moment with other values."""
        return dataclasses.replace(self, **changes)

    def looked(self) -> "Moment":
        """The same, after asking the device."""
        counts = read_counters(self.state)
        moved = self.moved_at if counts["step_count"] == self.step_count else self.batch_count
        return self.replace(**counts, asked_at=counts["batch_count"], moved_at=moved)


def first_moment(state: TrainState) -> Moment:
    """Where a state stands."""
    counts = read_counters(state)
    batch = counts["batch_count"]
    return Moment(state, batch, counts["epoch_count"], counts["epoch_step_count"], counts["step_count"], asked_at=batch, moved_at=batch)


def read_counters(state: TrainState) -> dict[str, int]:
    """The counters that the loop needs, in one transfer."""
    values = torch.stack([getattr(state.counters, name) for name in _COUNTERS]).tolist()
    return dict(zip(_COUNTERS, values, strict=True))


class Target(NamedTuple):
    """Where a run ends: the name of a count and its value, counted from the beginning of training. None: nowhere."""

    name: str | None
    value: int = 0

    def reached(self, now: Moment) -> bool:
        """Whether the run is there, as far as the host knows."""
        if self.name is None:
            return False
        counts = {"num_epochs": now.epoch_count, "num_steps": now.step_count, "num_batches": now.batch_count}
        return counts[self.name] >= self.value

    def as_dict(self) -> dict[str, int]:
        """For events."""
        return {} if self.name is None else {self.name: self.value}


def parse_target(time_budget: float | None, **counts: int | None) -> Target:
    """The one target that is given.

    Raises:
        ValueError: If there is none and no time budget, if there are several, or a value is not positive.
    """
    given = {name: value for name, value in counts.items() if value is not None}
    if len(given) > 1 or (not given and time_budget is None):
        raise ValueError(
            f"fit: give exactly one of num_epochs and num_steps or num_batches, or a time_budget, got {given or 'none of them'}"
        )
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"fit: {name} must be a whole number of at least 1, got {value!r}")
    if time_budget is not None and not time_budget > 0:  # `not >` rather than `<=`: also rejects nan
        raise ValueError(f"fit: time_budget must be a positive number of seconds, got {time_budget!r}")
    return Target(*next(iter(given.items()))) if given else Target(None)
