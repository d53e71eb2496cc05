"""A table of one kind of record, `metrics.csv`, for spreadsheets: one header, one row a record, in the order of training."""

import csv
import os
from collections.abc import Sequence
from typing import Any

from ..core.event import Event
from ..core.hook import Stage
from ..errors import DataError
from .dispensable import Dispensable
from .record import Kind, Record, Recorder

_COUNTS = ("batch", "step", "epoch", "final")


class CsvWriter(Dispensable):
    """Listener that writes records of one kind as rows; the columns are those of the first row.

    A run that resumes takes out the rows past its checkpoint, so the file is the one that an uninterrupted run writes. If writing fails
    the run goes on without the table, with one warning.

    Args:
        path: The file; one that is there must have been written by this class.
        kind: `train` or `validation`.
        every_n_batches: How often to write the metrics of a batch.

    Raises:
        DataError: If the file that is there is another one.
    """

    def __init__(self, path: str | os.PathLike, *, kind: Kind = "train", every_n_batches: int = 10):
        self.path, self.kind = os.path.abspath(os.fspath(path)), kind
        self._recorder = Recorder(every_n_batches)
        self._columns: list[str] | None = None
        if os.path.exists(self.path):
            _check_written_here(self.path, _read(self.path))

    def hear(self, event: Event) -> None:
        """Write the rows that belong to an event, none for most."""
        if event.stage is Stage.BEFORE_TRAINING and os.path.exists(self.path):
            self._columns = _keep_rows_up_to(self.path, (event.batch_count, event.epoch_count))
        for record in self._recorder(event):
            if record.kind == self.kind:
                self._append(record)

    def _append(self, record: Record) -> None:
        row: dict[str, Any] = dict(zip(_COUNTS, (record.batch, record.step, record.epoch, int(record.final)), strict=True)) | record.values
        is_first = self._columns is None
        columns = self._columns = list(row) if self._columns is None else self._columns
        if odd := sorted(set(columns) ^ row.keys()):
            raise DataError(f"{self.path}: {odd[0]!r} is a column or in the record of batch {record.batch}, not both; use another file")
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([columns] if is_first else [])
            writer.writerow([row[name] for name in columns])


def _keep_rows_up_to(path: str, place: tuple[int, int]) -> list[str] | None:
    """Take out the rows that a resumed run makes anew; returns the columns."""
    table = _read(path)
    _check_written_here(path, table)
    header, *rows = table or [[]]
    whole = [row for row in rows if len(row) == len(header)]  # a process that died inside a row left its checkpoint before it
    kept = [row for row in whole if _stands(dict(zip(header, row, strict=True)), place)]
    if len(kept) < len(rows):
        _replace(path, [header, *kept])
    return header or None


def _check_written_here(path: str, table: Sequence[Sequence[str]]) -> None:
    header = table[0] if table else ()
    if header and tuple(header[: len(_COUNTS)]) != _COUNTS:
        raise DataError(f"{path}: the first columns are {header[:4]}, expected {list(_COUNTS)}; it was not written here, use another file")


def _stands(row: dict[str, str], place: tuple[int, int]) -> bool:
    here = (int(row["batch"]), int(row["epoch"]))
    return here < place or (here == place and row["final"] == "0")


def _replace(path: str, rows: Sequence[Sequence[str]]) -> None:
    temporary = f"{path}.tmp"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    os.replace(temporary, path)


def _read(path: str) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
