"""A run of a spec, put together: pieces, first state, step, listeners; ready to be called."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .. import documents
from ..exits import ExitCode, Refusal, tell
from .record import add_attempt, add_pieces

if TYPE_CHECKING:
    from ...core.state import TrainState
    from ...loop import FitResult
    from ...reporting import StopOnSignal
    from ...reporting.console import Mode
    from ...spec.building import Pieces
    from ...spec.envelope import Spec


class Start(NamedTuple):
    """Where a run goes on."""

    root: str
    """Directory of checkpoints."""
    step: int | None = None
    """Label of the checkpoint; None: the newest."""
    changes_allowed: tuple[str, ...] = ()
    """Fields of the description of the data that may differ from the checkpoint's."""


class Request(NamedTuple):
    """What is to be run, and where."""

    spec: "Spec"
    run_dir: str
    trust: tuple[str, ...]
    progress: str
    start: Start | None = None
    """None: at the beginning."""
    attempt: dict[str, Any] | None = None
    """What is written down about a run that is taken up again."""


def assemble(request: Request, stack: contextlib.ExitStack) -> tuple[Callable[[], "FitResult"], "StopOnSignal"]:
    """The run, ready to be called, and the listener that knows whether a signal ended it; what they hold open is in the stack."""
    from ...loop import RuntimeSettings, fit, use_runtime
    from ...reporting import ConsoleProgress, JsonlWriter, StopOnSignal
    from ...spec.building import build
    from ...spec.reading import document_of

    spec = request.spec
    stop = stack.enter_context(StopOnSignal())
    device = device_of(spec)
    settings = stack.enter_context(use_runtime(RuntimeSettings(deterministic=spec.runtime.deterministic, num_threads=spec.runtime.threads)))
    pieces = build(spec, trust=request.trust)
    checkpointers = [stack.enter_context(_checkpointer(request, pieces))] if spec.output.checkpoints is not None else []
    if request.attempt is not None:  # not before: until the checkpoints are ours, another process may be at the run
        documents.write(os.path.join(request.run_dir, "spec.json"), document_of(spec))
        add_attempt(request.run_dir, **request.attempt)
    add_pieces(request.run_dir, pieces, device, settings)
    every = spec.output.report_every
    progress = ConsoleProgress(every_n_batches=every, mode=cast("Mode", request.progress), title=spec.name, unit="frames")
    # the log first, so that a checkpoint never knows more than it
    log = JsonlWriter(os.path.join(request.run_dir, "metrics.jsonl"), every_n_batches=every)
    train = partial(
        fit,
        pieces.training,
        pieces.batches,
        state=_first_state(request, pieces, device),
        num_steps=spec.strategy.num_steps,
        num_epochs=spec.strategy.num_epochs,
        validation=pieces.validation,
        listeners=[log, stack.enter_context(progress), *checkpointers, stop],
        step=compiled(spec, pieces),
    )
    return train, stop


def device_of(spec: "Spec") -> str:
    """Where a run computes.

    Raises:
        Refusal: If it asks for a device that is not there.
    """
    import torch

    available = torch.cuda.is_available()
    if spec.runtime.device == "cuda" and not available:
        advice = ["purestep doctor", "--set runtime.device=cpu"]
        raise Refusal("/runtime/device: this torch sees no CUDA device", ExitCode.ENVIRONMENT, advice)
    return "cuda" if spec.runtime.device != "cpu" and available else "cpu"


def compiled(spec: "Spec", pieces: "Pieces") -> Any:
    """The step as the spec compiles it; None if it does not."""
    settings = spec.runtime.compile
    if settings is None:
        return None
    from ...capture import compile

    return compile(pieces.training.step, capture=settings.capture, on_recompile=settings.on_recompile, backend=settings.backend)


def _checkpointer(request: Request, pieces: "Pieces") -> Any:
    from ...checkpoint import Checkpointer

    settings = request.spec.output.checkpoints
    assert settings is not None
    root = os.path.join(request.run_dir, "checkpoints")
    # the recipe of the model goes with its weights, so that a checkpoint alone says what it is of
    extra = {**_data_of(pieces), "model_specs": request.spec.model_dump(mode="json")["strategy"]["model_specs"]}
    return Checkpointer(root, **settings.model_dump(), extra=extra)


def _data_of(pieces: "Pieces") -> dict[str, Any]:
    return {"data": {"fingerprint": pieces.batches.fingerprint}}


def _first_state(request: Request, pieces: "Pieces", device: str) -> "TrainState":
    """Where training begins: at a checkpoint, at weights from elsewhere, or anew."""
    from ...spec.starting import first_state

    if request.start is not None:
        return _restore(request.start, pieces.training.init(request.spec.runtime.seed, device), pieces)
    state, report = first_state(request.spec, pieces.training, device)
    if report is not None:
        counts = {name: len(getattr(report, name)) for name in ("loaded", "kept", "unused")}
        tell(f"weights: {counts['loaded']} loaded, {counts['kept']} begin anew, {counts['unused']} of the source are not used")
    return state


def _restore(start: Start, initial: "TrainState", pieces: "Pieces") -> "TrainState":
    """A checkpoint, if it was written on the same data."""
    from ...checkpoint import load
    from ...checkpoint.restore import load_extra
    from ...checkpoint.resume import check_same

    which: Any = "latest" if start.step is None else start.step
    state = load(start.root, like=initial, step=which)
    saved = {"data": load_extra(start.root, step=which).get("data")}
    check_same(saved, _data_of(pieces), allow=start.changes_allowed, what=f"the data of {os.path.dirname(start.root)}")
    step, epoch, batch = (int(getattr(state.counters, f"{name}_count")) for name in ("step", "epoch", "epoch_step"))
    tell(f"restored step {step} (epoch {epoch}, batch {batch} of {len(pieces.batches)})")
    return state
