"""A run of a spec in its directory: what it needs is made, what happens is written down, and how it ended is told.

spec.json       the spec, with defaults and overrides, paths absolute
run.json        versions, command line, seeds
metrics.jsonl   the log
checkpoints/    the states
status.json     what became of it
"""

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .. import documents
from ..doctor import PACKAGES
from ..exits import ExitCode, Refusal, end, exit_code_of, tell
from ..run_directory import command_line

if TYPE_CHECKING:
    from ...core.state import TrainState
    from ...loop import FitResult
    from ...reporting import StopOnSignal
    from ...reporting.console import Mode
    from ...spec.building import Pieces
    from ...spec.envelope import Spec


class Request(NamedTuple):
    """What is to be run, and where."""

    spec: "Spec"
    run_dir: str
    trust: tuple[str, ...]
    progress: str
    resume: bool = False


def describe_run(spec: "Spec", path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What `run.json` holds."""
    from ... import __version__

    return {
        "schema": "purestep.run-record/1",
        "purestep": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "command": sys.argv,
        "spec": os.path.abspath(path),
        "overrides": list(overrides),
        "seeds": {"weights": spec.runtime.seed, "data": spec.runtime.seed, "training": spec.runtime.seed},
    }


def execute(request: Request) -> int:
    """Train; the exit code, which also stands in `status.json`."""
    running = False
    try:
        with contextlib.ExitStack() as stack:
            train, stop = _prepare(request, stack)
            _write_status(request, "running")  # not before: another process may be at it, which holds the checkpoints
            running = True
            result = train()
    except (Exception, KeyboardInterrupt) as error:
        if running or not request.resume:
            code = error.code if isinstance(error, Refusal) else exit_code_of(error)
            _write_status(request, "failed", exit_code=int(code), reason=str(error))
        return end(error, request.run_dir)
    received = stop.received
    signal_name = received.name if received is not None and result.stop_reason == received.name else None
    counts = {name: int(getattr(result.state.counters, name)) for name in ("step_count", "batch_count", "epoch_count")}
    if signal_name is not None:
        return _interrupted(request, signal_name, counts)
    outcome = {**counts, **_latest(result)}
    _write_status(request, "finished", exit_code=0, reason=result.stop_reason, **counts)
    documents.emit({"schema": "purestep.run/1", "status": "finished", "run_dir": request.run_dir, **outcome})
    return int(ExitCode.DONE)


def _write_status(request: Request, status: str, **facts: Any) -> None:
    documents.write(os.path.join(request.run_dir, "status.json"), {"schema": "purestep.status/1", "status": status, **facts})


def _latest(result: "FitResult") -> dict[str, Any]:
    records = [record for record in result.history if "validation/loss/total" in record] or result.history
    kept = ("loss/total", "validation/")
    return {name: value for name, value in (records[-1] if records else {}).items() if name.startswith(kept)}


def _interrupted(request: Request, signal_name: str, counts: dict[str, int]) -> int:
    if request.spec.output.checkpoints is None:
        code = ExitCode.SIGINT if signal_name == "SIGINT" else ExitCode.SIGTERM
        tell(f"stop requested ({signal_name}); the spec asks for no checkpoints, so nothing is saved")
    else:
        code = ExitCode.INTERRUPTED
        tell(f"stop requested ({signal_name}); saved a checkpoint at batch {counts['batch_count']}")
        trust = [word for grant in request.trust for word in ("--trust", grant)]
        tell(f"resume: {command_line('purestep', 'spec', 'resume', request.run_dir, *trust)}")
    _write_status(request, "interrupted", exit_code=int(code), reason=signal_name, **counts)
    return int(code)


def _prepare(request: Request, stack: contextlib.ExitStack) -> tuple[Callable[[], "FitResult"], "StopOnSignal"]:
    """The run, ready to be called, and the listener that knows whether a signal ended it; what they hold open is in the stack."""
    from ...loop import fit
    from ...reporting import ConsoleProgress, JsonlWriter, StopOnSignal
    from ...spec.building import build

    spec = request.spec
    stop = stack.enter_context(StopOnSignal())
    device = _prepare_torch(spec)
    pieces = build(spec, trust=request.trust)
    checkpointers = [stack.enter_context(_checkpointer(request, pieces))] if spec.output.checkpoints is not None else []
    state = _first_state(request, pieces, device)
    every = spec.output.report_every
    progress = ConsoleProgress(every_n_batches=every, mode=cast("Mode", request.progress), title=spec.name, unit="frames")
    # the log first, so that a checkpoint never knows more than it
    log = JsonlWriter(os.path.join(request.run_dir, "metrics.jsonl"), every_n_batches=every)
    train = partial(
        fit,
        pieces.training,
        pieces.batches,
        state=state,
        num_steps=spec.strategy.num_steps,
        num_epochs=spec.strategy.num_epochs,
        validation=pieces.validation,
        listeners=[log, stack.enter_context(progress), *checkpointers, stop],
        step=_compiled(spec, pieces),
    )
    return train, stop


def _first_state(request: Request, pieces: "Pieces", device: str) -> "TrainState":
    """Where training begins: at a checkpoint, at weights from elsewhere, or anew."""
    from ...spec.starting import first_state

    if request.resume:
        return _restore(request, pieces.training.init(request.spec.runtime.seed, device), pieces)
    state, report = first_state(request.spec, pieces.training, device)
    if report is not None:
        counts = {name: len(getattr(report, name)) for name in ("loaded", "kept", "unused")}
        tell(f"weights: {counts['loaded']} loaded, {counts['kept']} begin anew, {counts['unused']} of the source are not used")
    return state


def _prepare_torch(spec: "Spec") -> str:
    """Choose the device and the arithmetic; the process is ours, so its settings are too."""
    import torch

    runtime = spec.runtime
    if runtime.device == "cuda" and not torch.cuda.is_available():
        advice = ["purestep doctor", "--set runtime.device=cpu"]
        raise Refusal("/runtime/device: this torch sees no CUDA device", ExitCode.ENVIRONMENT, advice)
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    torch.use_deterministic_algorithms(runtime.deterministic)
    return "cuda" if runtime.device != "cpu" and torch.cuda.is_available() else "cpu"


def _compiled(spec: "Spec", pieces: "Pieces") -> Any:
    settings = spec.runtime.compile
    if settings is None:
        return None
    from ...capture import compile

    return compile(pieces.training.step, capture=settings.capture, on_recompile=settings.on_recompile, backend=settings.backend)


def _data_of(pieces: "Pieces") -> dict[str, Any]:
    return {"data": {"fingerprint": pieces.batches.fingerprint}}


def _checkpointer(request: Request, pieces: "Pieces") -> Any:
    from ...checkpoint import Checkpointer

    settings = request.spec.output.checkpoints
    assert settings is not None
    root = os.path.join(request.run_dir, "checkpoints")
    return Checkpointer(root, **settings.model_dump(), extra=_data_of(pieces))


def _restore(request: Request, initial: "TrainState", pieces: "Pieces") -> "TrainState":
    """The newest checkpoint, if it was written on the same data."""
    from ...checkpoint import load
    from ...checkpoint.restore import load_extra
    from ...checkpoint.resume import check_same

    root = os.path.join(request.run_dir, "checkpoints")
    state = load(root, like=initial)
    saved = {"data": load_extra(root).get("data")}
    check_same(saved, _data_of(pieces), what=f"the data of {request.run_dir}")
    step, epoch, batch = (int(getattr(state.counters, f"{name}_count")) for name in ("step", "epoch", "epoch_step"))
    tell(f"restored step {step} (epoch {epoch}, batch {batch} of {len(pieces.batches)})")
    return state
