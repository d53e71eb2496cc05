"""Which directories are runs, and what they say about themselves."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from .. import documents
from ..exits import ExitCode, Refusal

LOG = "metrics.jsonl"
STATUS = "status.json"
_MARKS = (STATUS, LOG, "run.json")
_DEPTH = 3


def find_runs(paths: Sequence[str]) -> list[str]:
    """The runs among directories, and in them; each once, in order.

    Raises:
        Refusal: If a path is no directory.
    """
    for path in paths:
        if not os.path.isdir(path):
            raise Refusal(f"{path} is no directory", ExitCode.PATH)
    return list(dict.fromkeys(os.path.normpath(found) for path in paths for found in _runs_in(path, _DEPTH)))


def _runs_in(path: str, depth: int) -> Iterator[str]:
    if any(os.path.isfile(os.path.join(path, mark)) for mark in _MARKS):
        yield path
    elif depth:
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                yield from _runs_in(inner, depth - 1)


def records_of(run_dir: str) -> list[dict[str, Any]]:
    """The lines of the log that stand; none if there is no log."""
    from ...reporting import read_metrics

    path = os.path.join(run_dir, LOG)
    return read_metrics(path) if os.path.isfile(path) else []


def status_of(run_dir: str) -> dict[str, Any]:
    """What became of the run, as it wrote itself; empty if it wrote nothing that can be read."""
    try:
        found = documents.read(os.path.join(run_dir, STATUS))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
