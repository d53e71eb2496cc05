"""Runs of trackio, which keeps them in a local database."""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from ..core.event import Event
from .trackers import TrackerWriter, require


class TrackioWriter(TrackerWriter):
    """Listener that logs to a run of trackio, on this machine; the dashboard is `trackio show`.

    Args:
        project: Of the run.
        name: Of the run; with the same one a resumed run goes on with its curves.
        config: Plain JSON to keep with it, for instance the spec.
        every_n_batches: How often to write the metrics of a batch.

    Raises:
        ModuleNotFoundError: If trackio is not installed.
    """

    def __init__(self, project: str, *, name: str | None = None, config: Mapping[str, Any] | None = None, every_n_batches: int = 10):
        super().__init__(every_n_batches=every_n_batches)
        require("trackio", "trackio")
        self._options = {"project": project, "name": name, "config": dict(config or {})}
        self._run: Any = None

    def begin(self, event: Event) -> None:
        """Begin a run, or go on with the one of this name."""
        import trackio

        # no space, no server: nothing leaves the machine unless trackio's own environment variables say so
        with contextlib.redirect_stdout(sys.stderr):  # it prints, and standard output is for results
            self._run = trackio.init(**self._options, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False)

    def write(self, values: Mapping[str, float], batch: int) -> None:
        """Log one row."""
        self._run.log(dict(values), step=batch)

    def end(self, *, failed: bool) -> None:
        """Finish the run."""
        import trackio

        with contextlib.redirect_stdout(sys.stderr):
            try:
                trackio.finish()  # its current run, which it would finish once more when the process ends, and print
            except RuntimeError:  # it has none any more
                self._run.finish()
