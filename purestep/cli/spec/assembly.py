"""A run of a spec, put together: pieces, first state, step, listeners; ready to be called."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import documents
from ..out_of_memory import MemoryDump
from ..preparing import compiled, device_of, settings_of
from ..runs.finding import records_of
from .beginning import Start, checkpointer, first_state_of
from .crash_dump import CrashDump
from .ends import check_metrics, ends_of
from .page import Predictions, collecting
from .record import add_attempt, add_pieces
from .sinks import writers_of
from .telling import Telling, make_profile, make_progress

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...loop import FitResult
    from ...spec.building import Pieces
    from ...spec.envelope import Spec


class Request(NamedTuple):
    """What is to be run, and where."""

    spec: "Spec"
    run_dir: str
    trust: tuple[str, ...]
    telling: Telling
    topology: "Topology"
    start: Start | None = None
    """None: at the beginning."""
    attempt: dict[str, Any] | None = None
    """What is written down about a run that is taken up again."""


class Assembled(NamedTuple):
    """A run that is ready."""

    train: Callable[[], "FitResult"]
    collected: Predictions | None
    """Predictions of the latest validation; None if nobody wants them."""
    step: Any
    """The step as it is compiled; None if it is not."""


def assemble(request: Request, stack: contextlib.ExitStack) -> Assembled:
    """The run, ready to be called; what it holds open is in the stack."""
    from ...loop import fit
    from ...reporting import StopOnSignal
    from ...spec.building import build
    from .ranks import on_rank_zero, shared

    spec, topology = request.spec, request.topology
    stop = stack.enter_context(StopOnSignal())
    device = device_of(spec) if topology.world_size == 1 else str(topology.device)
    settings = stack.enter_context(settings_of(spec))
    pieces = shared(spec, build(spec, trust=request.trust), topology)
    check_metrics(spec, pieces)
    collected = None
    if request.telling.report:
        pieces, collected = collecting(pieces)
    checkpointers = [stack.enter_context(checkpointer(request, pieces))] if spec.output.checkpoints is not None else []
    on_rank_zero(topology, lambda: _write_down(request, pieces, device, settings))
    before, after, span = listeners_of(request, pieces.batches, stack)
    step = compiled(spec, pieces)
    train = partial(
        fit,
        pieces.training,
        pieces.batches,
        state=first_state_of(request, pieces, device),
        num_steps=spec.strategy.num_steps,
        num_epochs=spec.strategy.num_epochs,
        num_batches=spec.strategy.num_batches,
        time_budget=spec.runtime.time_budget,
        validation=pieces.validation,
        listeners=[*before, *checkpointers, *after, stop],
        step=step,
        span=span,
    )
    return Assembled(train, collected, step)


def _write_down(request: Request, pieces: "Pieces", device: str, settings: dict[str, Any]) -> None:
    """Record what is known now; not before: until the checkpoints are ours, another process may be at the run."""
    from ...spec.reading import document_of

    if request.attempt is not None:
        documents.write(os.path.join(request.run_dir, "spec.json"), document_of(request.spec))
        add_attempt(request.run_dir, request.spec, **request.attempt)
    add_pieces(request.run_dir, pieces, device, {**settings, "world_size": request.topology.world_size})


def listeners_of(request: Request, batches: Any, stack: contextlib.ExitStack) -> tuple[list[Any], list[Any], Any]:
    """Who listens before the checkpoints, who after them, and what takes the time of the parts of the loop."""
    from ...distributed import RankStatus
    from ...loop import RefuseNonfinite
    from ...reporting import JsonlWriter
    from ...spec.continuing import description_of

    spec, run_dir, topology = request.spec, request.run_dir, request.topology
    status = [stack.enter_context(RankStatus(os.path.join(run_dir, "ranks"), topology))] if topology.world_size > 1 else []
    memory = MemoryDump(run_dir, topology.rank)
    profile = None if request.telling.profile is None else make_profile(request.telling.profile, os.path.join(run_dir, "trace"))
    profiles, span = ([], contextlib.nullcontext) if profile is None else ([profile], profile.span)
    if topology.rank != 0:
        return status, [memory, *profiles], span
    every = spec.output.report_every
    # the log first, so that a checkpoint never knows more than it
    log = JsonlWriter(os.path.join(run_dir, "metrics.jsonl"), every_n_batches=every)
    earlier = records_of(run_dir) if request.start is not None else []
    progress = make_progress(request.telling.progress, every_n_batches=every, title=spec.name, unit="frames", earlier=earlier)
    writers = writers_of(spec, run_dir)
    for one in (progress, *writers):
        if hasattr(one, "__exit__"):
            stack.enter_context(one)
    dump = CrashDump(run_dir, description_of(spec, batches))
    before, after = [*status, log, progress, *writers, RefuseNonfinite(every)], [*ends_of(spec.strategy, log.path), dump, memory]
    return before, [*after, *profiles], span
