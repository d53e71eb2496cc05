"""A run of a spec in its directory: what it needs is made, what happens is written down, and how it ended is told.

spec.json       the spec, with defaults and overrides, paths absolute; spec.source.json is what was typed
run.json        versions, code, command line, device, data, seeds
metrics.jsonl   the log
checkpoints/    the states
report.html     the page, once it is over
messages.log    what it said beside its progress
ranks/          what each further process says, where several share the run
status.json     what became of it
"""

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

from .. import documents
from ..exits import ExitCode, Refusal, end, exit_code_of, tell
from ..run_directory import command_line
from .assembly import Assembled, Request, assemble
from .granting import words_of
from .page import write_page
from .ranks import apart

if TYPE_CHECKING:
    from ...loop import FitResult

_MOST_REASONS = 20
_log = logging.getLogger("purestep.cli")


def execute(request: Request) -> int:
    """Train; the exit code, which also stands in `status.json`."""
    with apart(request.topology, request.run_dir):
        return _execute(request)


def _execute(request: Request) -> int:
    from ...core.event import is_preemption

    rank, running, assembled = request.topology.rank, False, None
    try:
        with contextlib.ExitStack() as stack:
            assembled = assemble(request, stack)
            _write_status(request, "running")  # not before: another process may be at it, which holds the checkpoints
            running = True
            result = assembled.train()
    except (Exception, KeyboardInterrupt) as error:
        if running or request.start is None:
            code = error.code if isinstance(error, Refusal) else exit_code_of(error)
            missing = list(getattr(error, "no_word_from", ()))
            lost = {"no_word_from": missing} if missing else {}
            first = min(set(range(request.topology.world_size)) - set(missing))  # rank 0 may be the one that is gone
            _write_status(request, "failed", writer=first, exit_code=int(code), reason=str(error), **lost, **_captured(assembled))
        return end(error, request.run_dir, rank)
    counts = {name: int(getattr(result.state.counters, name)) for name in ("step_count", "batch_count", "epoch_count")}
    captured = _captured(assembled)
    if is_preemption(result.stop_reason):
        return _interrupted(request, result.stop_reason, counts, captured)
    outcome = {**counts, **_latest(result)}
    _write_status(request, "finished", exit_code=0, reason=result.stop_reason, **counts, **captured)
    if request.telling.report and rank == 0:
        write_page(request.spec, request.run_dir, assembled.collected)
    documents.emit({"schema": "purestep.run/1", "status": "finished", "run_dir": request.run_dir, **outcome})
    return int(ExitCode.DONE)


def _write_status(request: Request, status: str, writer: int = 0, **facts: Any) -> None:
    if request.topology.rank == writer:
        _log.info("%s: %s", status, facts.get("reason", f"process {os.getpid()}"))
        documents.write(os.path.join(request.run_dir, "status.json"), {"schema": "purestep.status/1", "status": status, **facts})


def _latest(result: "FitResult") -> dict[str, Any]:
    records = [record for record in result.history if "validation/loss/total" in record] or result.history
    kept = ("loss/total", "validation/")
    return {name: value for name, value in (records[-1] if records else {}).items() if name.startswith(kept)}


def _captured(assembled: Assembled | None) -> dict[str, Any]:
    """How often the step was compiled, how long that took, and why; nothing if it is not."""
    if assembled is None or assembled.step is None:
        return {}
    found = assembled.step.explain()
    seconds = sum(one.trace_seconds + one.compile_seconds for one in found)
    return {"captures": {"count": len(found), "seconds": round(seconds, 3), "reasons": [one.reason for one in found[:_MOST_REASONS]]}}


def _interrupted(request: Request, signal_name: str, counts: dict[str, int], captured: dict[str, Any]) -> int:
    if request.spec.output.checkpoints is None:
        code = ExitCode.SIGINT if signal_name == "SIGINT" else ExitCode.SIGTERM
        tell(f"stop requested ({signal_name}); the spec asks for no checkpoints, so nothing is saved")
    else:
        code = ExitCode.INTERRUPTED
        tell(f"stop requested ({signal_name}); saved a checkpoint at batch {counts['batch_count']}")
        tell(f"resume: {command_line('purestep', 'spec', 'resume', request.run_dir, *words_of(request.trust))}")
    _write_status(request, "interrupted", exit_code=int(code), reason=signal_name, **counts, **captured)
    return int(code)
