"""The log of a run, `metrics.jsonl`: one JSON object a line, only ever appended to; and how it is read back.

Every time a run starts or resumes is an attempt, and begins with a line of kind `start` that says after which batch it continues. From
there on it supersedes what earlier attempts wrote: lines past that batch came from a process whose end no checkpoint holds. So the
lines that stand are those of a run that was never interrupted, except for what the clock says (`attempt`, `wall`).
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..core.event import Event
from ..core.hook import Stage
from ..errors import DataError
from .meter import PACE_KEYS, Meter
from .record import Record, Recorder

WALL_CLOCK = ("attempt", "wall", *PACE_KEYS)
"""Fields that differ between two runs that are otherwise the same, and so would differ after an interruption."""
_FIELDS = ("attempt", "wall", *PACE_KEYS, "kind", "batch", "step", "epoch", "final", "nonfinite")


class JsonlWriter:
    """Listener that appends records to a file; each line is with the operating system before the next batch begins.

    It stands before the checkpoint writer among the listeners, so that a checkpoint never knows more than the log. A line has `attempt`,
    `kind` (`train`, `validation`), `batch`, `step`, `epoch`, `wall` (seconds since 1970) and the metrics; those of training also have
    `training/steps_per_s` and the like, as far as they are known. A metric that is NaN or infinite is `null`, and named in `nonfinite`.

    Args:
        path: The file; made if missing, never shortened.
        every_n_batches: How often to write the metrics of a batch; every validation is written.
        clock: Where `wall` comes from.
    """

    def __init__(self, path: str | os.PathLike, *, every_n_batches: int = 10, clock: Callable[[], float] = time.time):
        self.path = os.path.abspath(os.fspath(path))
        self._recorder = Recorder(every_n_batches)
        self._clock, self._meter = clock, Meter()
        self._attempt: int | None = None

    def __call__(self, event: Event) -> None:
        """Write the lines that belong to an event, none for most."""
        if event.stage is Stage.SETUP:
            self._attempt = None  # another run of the loop is another attempt
        elif event.stage is Stage.BEFORE_TRAINING:
            self._begin(event.batch_count, event.epoch_count)
        self._meter.note(event)
        for record in self._recorder(event):
            if self._attempt is None:  # a loop that told us nothing before its first batches
                self._begin(record.batch - 1, record.epoch)
            pace = self._meter.measure(record, event).scalars() if record.kind == "train" else {}
            self._append(self._line(record) | pace)

    def _begin(self, batch: int, epoch: int) -> None:
        self._attempt = _last_attempt(self.path) + 1
        self._append({"attempt": self._attempt, "kind": "start", "batch": batch, "epoch": epoch, "wall": self._clock()})

    def _line(self, record: Record) -> dict[str, Any]:
        if taken := sorted(set(_FIELDS) & record.values.keys()):
            raise ValueError(f"metric {taken[0]!r} has the name of a field of the log; rename it, for instance to 'my/{taken[0]}'")
        return {"attempt": self._attempt, "wall": self._clock(), **fields_of(record)}

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with open(self.path, "ab+", buffering=0) as file:
            if line["kind"] == "start" and _is_torn(file):
                text = b"\n" + text  # a process died inside a line: it stays, on its own
            file.write(text)


def fields_of(record: Record) -> dict[str, Any]:
    """A record as strict JSON: what is not finite is null, and named."""
    line: dict[str, Any] = {"kind": record.kind, "batch": record.batch, "step": record.step, "epoch": record.epoch}
    line |= {"final": True} if record.final else {}
    line |= {name: value if math.isfinite(value) else None for name, value in record.values.items()}
    nonfinite = [name for name, value in record.values.items() if not math.isfinite(value)]
    return line | ({"nonfinite": nonfinite} if nonfinite else {})


def _is_torn(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _last_attempt(path: str) -> int:
    if not os.path.exists(path):
        return 0
    return max((line["attempt"] for line in _lines(path)), default=0)


# --- reading ------------------------------------------------------------------------------------------------------


def read_metrics(path: str | os.PathLike, *, attempts: bool = False) -> list[dict[str, Any]]:
    """The lines of a log that stand, in the order of training.

    Args:
        path: A file that `JsonlWriter` wrote.
        attempts: Keep everything: superseded lines, lines of kind `start`, and what depends on the clock.

    Returns:
        Without `attempts`, equal for a run that was interrupted and resumed from checkpoints and for one that never was.

    Raises:
        DataError: If a line that is not the last of an attempt cannot be read.
    """
    lines = list(_lines(os.fspath(path)))
    if attempts:
        return lines
    starts = [line for line in lines if line["kind"] == "start"]
    standing = [line for line in lines if line["kind"] != "start" and not any(_supersedes(start, line) for start in starts)]
    return [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in standing]


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line, by name; NaN where the metric was not finite."""
    return {name: math.nan if value is None else value for name, value in line.items() if name not in _FIELDS}


def _supersedes(start: dict[str, Any], line: dict[str, Any]) -> bool:
    """Whether a later attempt made a line anew; the validation after an epoch bears its last batch, but the next epoch."""
    begin, place = ((entry["batch"], entry["epoch"]) for entry in (start, line))
    return start["attempt"] > line["attempt"] and (place > begin or (place == begin and line.get("final", False)))


def _lines(path: str) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        texts = [text for text in file.read().split("\n") if text]
    found: list[dict[str, Any]] = []
    torn = None
    for number, text in enumerate(texts, start=1):
        line = _parse(text)
        if torn is not None and (line is None or line["kind"] != "start"):
            raise DataError(f"{path}: record {torn} is not a line of a metrics file, and no process ended there; was the file edited?")
        torn = number if line is None else None
        if line is not None:
            found.append(line)
    return found


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"attempt", "kind", "batch", "epoch"} <= line.keys() else None
