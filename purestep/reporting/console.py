"""Progress of a run on the screen: one live line in a terminal, whole lines anywhere else, so that log files stay readable."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self, TextIO, get_args

from ..core.event import Event
from ..core.hook import Stage
from .meter import Meter
from .pace import Goal, duration
from .record import Record, Recorder

Mode = Literal["auto", "rich", "plain", "none"]


class ConsoleProgress:
    """Listener that shows step, loss, learning rate, gradient norm, samples a second and the time to go.

    Use it as a context, so that the terminal is left in order whatever happens:
    `with ConsoleProgress() as progress: ps.fit(..., listeners=[progress])`.

    Args:
        every_n_batches: How often metrics are read and shown; between that nothing waits for the device.
        mode: `rich` is a live line, `plain` whole lines, `none` nothing; `auto` chooses the live line in a terminal that can do it.
        title: Stands before the live line, and names the run in the plain ones.
        unit: What a sample is called.
        count_samples: Samples of a batch, from what the host knows of it; see `num_samples` in `meter.py`.
        validation_metrics: Metrics of validation to show beside the loss: what to call each, by name.
        seconds_between_lines: Least time between two plain lines; the last one of a run is always written.
        file: Where to write; stderr by default, because stdout is for results.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        *,
        every_n_batches: int = 10,
        mode: Mode = "auto",
        title: str = "",
        unit: str = "samples",
        count_samples: Callable[[Any], int] | None = None,
        validation_metrics: Mapping[str, str] | None = None,
        seconds_between_lines: float = 10.0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._recorder = Recorder(every_n_batches)
        self._display = _display(mode, title, sys.stderr if file is None else file, seconds_between_lines, clock)
        self._meter = Meter(count_samples=count_samples, clock=clock)
        self._unit, self._validation_metrics = unit, dict(validation_metrics or {})

    def __call__(self, event: Event) -> None:
        """Show what an event brings."""
        self._meter.note(event)
        for record in self._recorder(event):
            self._show(record, event)
        if event.stage is Stage.AFTER_TRAINING:
            self.close()

    def note(self, text: str) -> None:
        """Write a line of text; in a terminal it stands above the live line."""
        self._display.note(text)

    def close(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        self._display.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _show(self, record: Record, event: Event) -> None:
        if record.kind == "validation":
            self._display.note(f"step {record.step}  {validation_text(record.values, self._validation_metrics)}")
            return
        pace = self._meter.measure(record, event)
        text = f"{count_text(record, event)}  {metrics_text(record.values)}{self._pace_text(pace.samples_per_s, pace.eta_s)}"
        self._display.show(pace.progress, text)

    def _pace_text(self, rate: float | None, left: float | None) -> str:
        pace = "" if rate is None else f"  {rate:,.0f} {self._unit}/s"
        return pace + ("" if left is None else f"  eta {duration(left)}")


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


# --- displays -----------------------------------------------------------------------------------------------------


class _Display(Protocol):
    def show(self, progress: Goal, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def _display(mode: Mode, title: str, file: TextIO, seconds: float, clock: Callable[[], float]) -> _Display:
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    chosen = ("rich" if can_redraw(file) else "plain") if mode == "auto" else mode
    if chosen == "rich":
        return _LiveLine(title, file)
    return _WholeLines(title, file, seconds, clock) if chosen == "plain" else _Nothing()


def can_redraw(file: TextIO) -> bool:
    """Whether a line of this file can be drawn over: it is a terminal, and one that knows how."""
    return file.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


class _Nothing:
    def show(self, progress: Goal, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class _WholeLines:
    """One line now and then, none of them ever changed."""

    def __init__(self, title: str, file: TextIO, seconds: float, clock: Callable[[], float]):
        self._title, self._file, self._seconds, self._clock = title, file, seconds, clock
        self._written_at: float | None = None
        self._waiting: str | None = None

    def show(self, progress: Goal, text: str) -> None:
        now = self._clock()
        self._waiting = text
        if self._written_at is None or now - self._written_at >= self._seconds:
            self._written_at = now
            self.close()

    def note(self, text: str) -> None:
        title = f"{self._title}: " if self._title else ""
        print(f"{time.strftime('%H:%M:%S')} {title}{text}", file=self._file, flush=True)

    def close(self) -> None:
        text, self._waiting = self._waiting, None
        if text is not None:
            self.note(text)


class _LiveLine:
    """A bar with the numbers beside it, drawn anew when there are new numbers; no thread draws in between."""

    def __init__(self, title: str, file: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=file, highlight=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TextColumn("{task.fields[text]}", markup=False))
        self._progress = Progress(*columns, console=self._console, auto_refresh=False)
        self._task = self._progress.add_task(title, total=None, text="")
        self._started = False

    def show(self, progress: Goal, text: str) -> None:
        if not self._started:
            self._started = True
            self._progress.start()
        self._progress.update(self._task, completed=progress.done, total=progress.total, text=text, refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._started:
            self._started = False
            self._progress.stop()
