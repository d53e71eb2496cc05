"""Runs at Weights & Biases: off-line unless asked for, and never a question."""

import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ..core.event import Event
from .trackers import TrackerWriter, require, unless_said

WandbMode = Literal["offline", "online"]
_KEY = "WANDB_API_KEY"


class WandbWriter(TrackerWriter):
    """Listener that logs to a run of wandb. Off-line it writes a directory that `wandb sync` uploads later.

    Args:
        project: Of the run.
        name: Of the run.
        run_id: With the same one a resumed run goes on with its curves.
        config: Plain JSON to keep with it, for instance the spec.
        directory: Where wandb keeps its files.
        mode: `online` needs a key in `WANDB_API_KEY`: without one wandb would ask.
        every_n_batches: How often to write the metrics of a batch.

    Raises:
        ModuleNotFoundError: If wandb is not installed.
        ValueError: If it should be online and there is no key.
    """

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        directory: str | os.PathLike | None = None,
        mode: WandbMode = "offline",
        every_n_batches: int = 10,
    ):
        super().__init__(every_n_batches=every_n_batches)
        if mode not in get_args(WandbMode):
            raise ValueError(f"mode must be one of {', '.join(get_args(WandbMode))}, got {mode!r}")
        require("wandb", "wandb")
        if mode == "online" and not os.environ.get(_KEY):
            raise ValueError(f"WandbWriter: mode='online' needs a key in {_KEY}; set it, or use mode='offline' and `wandb sync` later")
        self._options = {"project": project, "name": name, "id": run_id, "config": dict(config or {}), "mode": mode}
        self._options["dir"] = None if directory is None else os.fspath(directory)
        self._run: Any = None

    def begin(self, event: Event) -> None:
        """Begin a run, or go on with the one of this id."""
        import wandb

        # standard output is for results: wandb neither takes it over nor writes to it
        settings = wandb.Settings(console="off", silent=True)
        # off-line wandb would still report its own errors to its makers
        with unless_said(**({"WANDB_ERROR_REPORTING": "false"} if self._options["mode"] == "offline" else {})):
            self._run = wandb.init(**self._options, resume="allow", settings=settings)
        self._run.define_metric("batch")
        self._run.define_metric("*", step_metric="batch")  # its own counter never goes back, ours does after a resume

    def write(self, values: Mapping[str, float], batch: int) -> None:
        """Log one row."""
        self._run.log({"batch": batch, **values})

    def end(self, *, failed: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=1 if failed else 0)
