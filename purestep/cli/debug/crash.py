"""A step that ended a run, run again with what it was given then."""

import os
from typing import TYPE_CHECKING, Any

from ..exits import tell

if TYPE_CHECKING:
    from .one_step import Step


def is_crash(path: str) -> bool:
    """Whether a path is that of what a failed step was given, `RUN/crash/step_N`."""
    from ...checkpoint.store import is_checkpoint

    return os.path.basename(os.path.dirname(os.path.abspath(path))) == "crash" and is_checkpoint(path)


def replayed(path: str, ready: Any) -> "Step":
    """The step, run eagerly; if it fails again, the error is the answer.

    Raises:
        StructureMismatchError: If it is of another run, or the data have other frames by now.
    """
    from ...checkpoint import load, load_extra
    from ...core import tree
    from ...spec.continuing import check_description
    from .one_step import run_step

    saved, pieces = load_extra(path), ready.pieces
    check_description(saved, ready.spec, pieces.batches, what=path)
    state = pieces.training.init(ready.spec.runtime.seed, ready.device)
    # the batch that the data give now says what form the other one has
    batch = tree.to_device(pieces.batches.batch(saved["epoch"], saved["epoch_step"]), state.seed.device)
    found = load(path, like={"state": state, "batch": batch})
    tell(f"restored {path}; the run failed here with", f"  {saved['error']}")
    return run_step(pieces.training, found["state"], found["batch"])
