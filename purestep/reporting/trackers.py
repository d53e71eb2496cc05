"""What the writers for trackers share: when they write, and what happens when one fails. Each tracker is a file beside this one.

A tracker is named by whoever wants it, never found and switched on by itself; none asks a question, and none is imported before its
writer is made. The log of a run is `metrics.jsonl`; these are for looking at it elsewhere.
"""

import contextlib
import importlib.util
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Self

from ..core.event import Event
from ..core.hook import Stage
from .dispensable import Dispensable
from .meter import Meter
from .record import Recorder


class TrackerWriter(Dispensable):
    """Listener that hands records, with the pace of the run, to one tracker; the axis is the number of the batch.

    A subclass says how to begin, to write and to end. If it fails once it is not called again: the run goes on with one warning.
    A context, which ends the tracking whatever happens.

    Args:
        every_n_batches: How often to write the metrics of a batch; every validation is written.
    """

    def __init__(self, *, every_n_batches: int = 10):
        self._recorder, self._meter = Recorder(every_n_batches), Meter()
        self._is_open = False

    def begin(self, event: Event) -> None:
        """Start, or go on after a resume at `event.batch_count`."""
        raise NotImplementedError

    def write(self, values: Mapping[str, float], batch: int) -> None:
        """Write finite values."""
        raise NotImplementedError

    def look(self, event: Event) -> None:
        """Write what is not a scalar; nothing unless a tracker can."""

    def end(self, *, failed: bool) -> None:
        """Finish."""
        raise NotImplementedError

    def hear(self, event: Event) -> None:
        """Hand on the records of an event, none for most."""
        if event.stage is Stage.BEFORE_TRAINING or (event.stage is Stage.AFTER_BATCH and not self._is_open):
            self.close()
            self.begin(event)
            self._is_open = True
        self._meter.note(event)
        for record in self._recorder(event):
            counts = {"training/step": float(record.step), "training/epoch": float(record.epoch)}
            pace = self._meter.measure(record, event).scalars() if record.kind == "train" else {}
            values = {**record.values, **counts, **pace}
            self.write({name: value for name, value in values.items() if math.isfinite(value)}, record.batch)
        self.look(event)
        if event.stage is Stage.AFTER_TRAINING:
            self.close()

    def close(self) -> None:
        """End the tracking; calling it twice is fine."""
        self._close(failed=False)

    def _close(self, *, failed: bool) -> None:
        if self._is_open:
            self._is_open = False
            self.end(failed=failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._close(failed=error is not None)
        except Exception as failure:
            text = f"{type(self).__name__} could not end: {failure}"
            if error is None:
                warnings.warn(text, RuntimeWarning, stacklevel=2)  # the run itself is whole
            else:
                error.add_note(f"besides, {text}")


@contextlib.contextmanager
def unless_said(**variables: str) -> Iterator[None]:
    """Environment variables for as long as a library begins, but for those that the user has set."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def require(module: str, extra: str) -> None:
    """Refuse a tracker that is not installed, before the run.

    Raises:
        ModuleNotFoundError: Saying how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{module} is not installed; pip install 'purestep[{extra}]'", name=module)
