"""Records: what of a run is written down, and when. Where it goes is the business of the writers beside this file."""

import dataclasses
from typing import Literal

from ..core.event import Event
from ..core.hook import Stage
from .scalars import read_scalars

Kind = Literal["train", "validation"]


@dataclasses.dataclass(frozen=True)
class Record:
    """Numbers of one moment of a run."""

    kind: Kind
    batch: int
    step: int
    epoch: int
    values: dict[str, float]
    """Metrics by name, those of validation under `validation/`; may be NaN or infinite."""
    final: bool = False
    """A validation at no cadence: the last act of a run that ended here. A run that goes on from here never made it."""


class Recorder:
    """From events to records: every `every_n_batches` batches, and every validation.

    Between records nothing is read from the device, so nothing waits for it. All records of a batch are made before a checkpoint of it
    can be written.

    Args:
        every_n_batches: Record the batches whose number is a multiple of this; at least 1. A record holds the metrics of its own batch,
            never a sum over the interval.
    """

    def __init__(self, every_n_batches: int = 10):
        if every_n_batches < 1:
            raise ValueError(f"every_n_batches must be at least 1, got {every_n_batches}")
        self.every_n_batches = every_n_batches
        self._recorded = -1  # batch of the latest record of training

    def __call__(self, event: Event) -> list[Record]:
        """The records that an event makes, none for most."""
        if event.stage is Stage.AFTER_BATCH:
            return self._train(event)
        if event.stage is Stage.AFTER_VALIDATION and event.validation is not None:
            read = with_shares({name: float(value) for name, value in event.validation.items()})
            values = {f"validation/{name}": value for name, value in read.items()}
            validated = Record("validation", *_counts(event), values, final=event.stop_reason is not None)
            return [*self._train(event), validated]
        return []

    def _train(self, event: Event) -> list[Record]:
        due = event.batch_count % self.every_n_batches == 0 and event.batch_count != self._recorded
        if not due or event.epoch_step_count == 0 or not event.metrics:
            return []
        self._recorded = event.batch_count
        return [Record("train", *_counts(event), with_shares(read_scalars(event.metrics)))]


def with_shares(values: dict[str, float]) -> dict[str, float]:
    """The values, and after the weight of each term of the loss what the term adds to it: `loss/<name>/total`."""
    found = {}
    for name, value in values.items():
        found[name] = value
        term = name.removesuffix("/weight")
        if term != name and f"{term}/unweighted" in values:
            found[f"{term}/total"] = value * values[f"{term}/unweighted"]
    return found


def _counts(event: Event) -> tuple[int, int, int]:
    return event.batch_count, event.step_count, event.epoch_count
