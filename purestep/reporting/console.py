"""Progress of a run on the screen: a live dashboard or line in a terminal, whole lines anywhere else, so that log files stay readable."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TextIO

from ..core.event import Event
from ..core.hook import Stage
from .dispensable import Dispensable
from .displays import Mode, make_display
from .jsonl import fields_of, metrics_of
from .layouts import Layout
from .meter import Meter
from .pace import duration
from .record import Record, Recorder, with_shares
from .scalars import read_scalars
from .view import Memory, View


class ConsoleProgress(Dispensable):
    """Listener that shows step, loss, learning rate, gradient norm, samples a second and the time to go.

    Use it as a context, so that the terminal is left in order whatever happens:
    `with ConsoleProgress() as progress: ps.fit(..., listeners=[progress])`. If it can write no more, as where its reader has gone, the run
    goes on in silence.

    Args:
        every_n_batches: How often metrics are read and shown; between that nothing waits for the device.
        mode: `rich` is drawn anew at each report, `plain` is whole lines, `json` the lines of the log,
            `none` nothing; `auto` draws in a terminal that can do it.
        layout: What to draw; by default a dashboard where the terminal has room for it, else one line. See `layouts.preview`.
        title: Stands before the live line, and names the run in the plain ones.
        unit: What a sample is called.
        count_samples: Samples of a batch, from what the host knows of it; see `num_samples` in `meter.py`.
        validation_metrics: Metrics of validation to show beside the loss: what to call each, by name.
        earlier: Lines of the log from before a resume, as `read_metrics` gives them; curves begin with those that stand.
        seconds_between_lines: Least time between two plain lines; the last one of a run is always written.
        file: Where to write; stderr by default, because stdout is for results.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        *,
        every_n_batches: int = 10,
        mode: Mode = "auto",
        layout: Layout | None = None,
        title: str = "",
        unit: str = "samples",
        count_samples: Callable[[Any], int] | None = None,
        validation_metrics: Mapping[str, str] | None = None,
        earlier: Sequence[Mapping[str, Any]] = (),
        seconds_between_lines: float = 10.0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._recorder = Recorder(every_n_batches)
        self._display = make_display(mode, layout, title, sys.stderr if file is None else file, seconds_between_lines, clock)
        self._meter = Meter(count_samples=count_samples, clock=clock)
        self._title, self._unit, self._validation_metrics = title, unit, dict(validation_metrics or {})
        self._earlier, self._memory = earlier, Memory()
        self._view: View | None = None
        self._told = -1  # batch of the latest line of training

    def hear(self, event: Event) -> None:
        """Show what an event brings."""
        self._meter.note(event)
        if event.stage is Stage.BEFORE_TRAINING:
            self._remember(event.batch_count)
        records = self._recorder(event)
        for record in [*self._last_of_training(records, event), *records]:
            self._show(record, event)
        if event.stage is Stage.AFTER_TRAINING:
            self.close()

    def note(self, text: str) -> None:
        """Write a line of text; in a terminal it stands above the live line."""
        self._display.note(text, self._view)

    def close(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        with contextlib.suppress(OSError):  # nobody is there to see it
            self._display.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _last_of_training(self, records: Sequence[Record], event: Event) -> list[Record]:
        """The record of the last batch of a run, where no interval has made one, so that the last line is of the last step."""
        told = event.batch_count == self._told or any(record.kind == "train" for record in records)
        ending = event.stage in (Stage.AFTER_VALIDATION, Stage.AFTER_TRAINING) and ends_here(event)
        if told or not ending or not event.metrics:
            return []
        epoch = event.epoch_count - (event.epoch_step_count == 0)  # that of the batch, if it is over already
        return [Record("train", event.batch_count, event.step_count, epoch, with_shares(read_scalars(event.metrics)))]

    def _remember(self, batch: int) -> None:
        """Take in what was reported before the run was taken up again, up to where it goes on."""
        lines, self._earlier = self._earlier, ()
        for line in lines:
            if line["batch"] < batch or (line["batch"] == batch and not line.get("final", False)):
                self._memory.add(metrics_of(line))

    def _show(self, record: Record, event: Event) -> None:
        self._memory.add(record.values)
        if record.kind == "validation":
            if ends_here(event):
                self._display.settle()
            if self._view is not None:
                self._view = dataclasses.replace(self._view, **self._remembered())
            self._display.record(fields_of(record))
            self._display.validated(f"step {record.step}  {validation_text(record.values, self._validation_metrics)}", self._view)
            return
        self._told = record.batch
        pace, count = self._meter.measure(record, event), count_text(record, event)
        line = f"{count}  {metrics_text(record.values)}{self._pace_text(pace.samples_per_s, pace.eta_s)}"
        self._view = View(self._title, count, line, self._unit, pace, **self._remembered())
        self._display.record(fields_of(record) | pace.scalars())
        self._display.show(self._view)

    def _remembered(self) -> dict[str, Any]:
        memory = self._memory
        return {"metrics": dict(memory.metrics), "curves": dict(memory.curves), "constants": memory.constants()}

    def _pace_text(self, rate: float | None, left: float | None) -> str:
        pace = "" if rate is None else f"  {rate:,.0f} {self._unit}/s"
        return pace + ("" if left is None else f"  eta {duration(left)}")


def ends_here(event: Event) -> bool:
    """Whether a run has come to its target, or will have when this epoch, whose batches are all done, is counted."""
    epochs, left = event.target.get("num_epochs"), event.num_batches
    return event.target_reached or (epochs == event.epoch_count + 1 and left is not None and event.epoch_step_count == left)


# --- texts --------------------------------------------------------------------------------------------------------


def count_text(record: Record, event: Event) -> str:
    """Where the run is, in the unit of its target."""
    if "num_epochs" in event.target:
        return f"epoch {record.epoch + 1}/{event.target['num_epochs']}  step {record.step}"
    if "num_batches" in event.target:
        return f"batch {record.batch}/{event.target['num_batches']}  step {record.step}"
    end = event.target.get("num_steps")
    return f"step {record.step}" + ("" if end is None else f"/{end}")


def metrics_text(values: Mapping[str, float]) -> str:
    """Loss, learning rate and gradient norm, as far as they are there."""
    rate = next((value for name, value in values.items() if name.endswith("/lr")), None)
    shown = (("loss", values.get("loss/total"), ".4g"), ("lr", rate, ".2e"), ("grad", values.get("update/grad_norm"), ".3g"))
    return "  ".join(f"{name} {value:{form}}" for name, value, form in shown if value is not None)


def validation_text(values: Mapping[str, float], chosen: Mapping[str, str]) -> str:
    """The validated loss, and the chosen ones of the other metrics."""
    total = values.get("validation/loss/total")
    shown = [(label, value) for name, label in chosen.items() if (value := values.get(f"validation/{name}")) is not None]
    loss = "validation" if total is None else f"validation loss {total:.4g}"
    return "  ".join([loss, *(f"{label} {value:.3g}" for label, value in shown)])
