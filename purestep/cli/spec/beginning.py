"""The state that a run begins with, and its checkpoints: of one process, or of ranks that share the run."""

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..exits import tell

if TYPE_CHECKING:
    from ...core.state import TrainState
    from ...spec.building import Pieces
    from .assembly import Request


class Start(NamedTuple):
    """Where a run goes on."""

    root: str
    """Directory of checkpoints."""
    step: int | None = None
    """Label of the checkpoint; None: the newest."""
    changes_allowed: tuple[str, ...] = ()
    """Fields of the spec that may differ from the checkpoint's."""


def checkpointer(request: "Request", pieces: "Pieces") -> Any:
    """The listener that writes checkpoints, a context; where ranks share the run, rank 0 writes."""
    from ...checkpoint import Checkpointer
    from ...spec.continuing import description_of

    settings = request.spec.output.checkpoints
    assert settings is not None
    root = os.path.join(request.run_dir, "checkpoints")
    # the recipe of the model goes with its weights, so that a checkpoint alone says what it is of
    models = request.spec.model_dump(mode="json")["strategy"]["model_specs"]
    extra = {**description_of(request.spec, pieces.batches), "model_specs": models}
    if request.topology.world_size == 1:
        return Checkpointer(root, **settings.model_dump(), extra=extra)
    from ...distributed import SharedCheckpoints

    cadence = settings.model_dump(include={"every_n_steps", "every_n_epochs", "every_seconds"})
    kept = settings.model_dump(exclude=set(cadence))

    def writer() -> Any:
        return Checkpointer(root, **kept, extra=extra)

    return SharedCheckpoints(writer, request.topology, **cadence)


def first_state_of(request: "Request", pieces: "Pieces", device: str) -> "TrainState":
    """Where training begins: at a checkpoint, at weights from elsewhere, or anew."""
    from ...spec.starting import first_state

    if request.start is not None:
        return _restore(request, request.start, pieces.training.init(request.spec.runtime.seed, device), pieces)
    state, report = first_state(request.spec, pieces.training, device)
    if report is not None:
        counts = {name: len(getattr(report, name)) for name in ("loaded", "kept", "unused")}
        tell(f"weights: {counts['loaded']} loaded, {counts['kept']} begin anew, {counts['unused']} of the source are not used")
    return state


def _restore(request: "Request", start: Start, initial: "TrainState", pieces: "Pieces") -> "TrainState":
    """A checkpoint, if it is of the same run; it may be of another number of ranks."""
    from ...checkpoint import load
    from ...checkpoint.restore import load_extra
    from ...distributed import restore
    from ...spec.continuing import check_description

    which: Any = "latest" if start.step is None else start.step
    state = restore(partial(load, start.root, step=which), initial, request.topology)
    saved = load_extra(start.root, step=which)
    what = f"the run in {os.path.dirname(start.root)}"
    check_description(saved, request.spec, pieces.batches, allowed=start.changes_allowed, what=what)
    step, epoch, batch = (int(getattr(state.counters, f"{name}_count")) for name in ("step", "epoch", "epoch_step"))
    tell(f"restored step {step} (epoch {epoch}, batch {batch} of {len(pieces.batches)})")
    return state
