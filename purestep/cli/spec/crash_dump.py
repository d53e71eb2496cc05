"""What a step that failed was given: its state, its batch, the traceback and the versions, in `crash/step_N` of the run.

It is written as a checkpoint, and `purestep debug replay` runs the step again. Of a run that several processes share nothing is written:
one process has only its part.
"""

import os
import shutil
import traceback
from typing import TYPE_CHECKING, Any

from ..run_directory import command_line
from .record import read

if TYPE_CHECKING:
    from ...core.event import Event

_KEPT = 3
_RECORDED = ("purestep", "python", "platform", "packages", "git")


class CrashDump:
    """A listener that writes down what a step was given when it failed; only the newest few stay.

    Args:
        run_dir: Of the run.
        description: What decides the course of the run, as its checkpoints have it.
    """

    hears_errors = True

    def __init__(self, run_dir: str, description: dict[str, Any]):
        self.root, self.run_dir, self.description = os.path.join(run_dir, "crash"), run_dir, description

    def __call__(self, event: "Event") -> None:
        """Write, if a step failed; where to is added to its error."""
        if event.error is None or event.batch is None:
            return
        from ...checkpoint import save

        record = {name: found for name, found in read(self.run_dir).items() if name in _RECORDED}
        extra = {
            **self.description,
            "epoch": event.epoch_count,
            "epoch_step": event.epoch_step_count,
            "versions": record,
            "error": f"{type(event.error).__name__}: {event.error}",
            "traceback": "".join(traceback.format_exception(event.error)),
        }
        path = os.path.join(self.root, f"step_{event.batch_count:09d}")
        save(path, {"state": event.state, "batch": event.batch}, label=event.batch_count, reason="exception", extra=extra)
        event.error.add_note(f"what the step was given is kept: {command_line('purestep', 'debug', 'replay', path)}")
        for name in sorted(name for name in os.listdir(self.root) if name.startswith("step_"))[:-_KEPT]:
            if name != os.path.basename(path):
                shutil.rmtree(os.path.join(self.root, name))
