"""`purestep spec run --dry-run`: every part of a run tried with one batch, where the run would be; nothing is written into it."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import documents
from ..exits import ExitCode, tell
from ..preparing import compiled, device_of, settings_of

if TYPE_CHECKING:
    from ...spec.envelope import Spec

_SIGNS = {"passed": "ok", "failed": "FAILED", "not tried": "-"}


def rehearsed(spec: "Spec", trust: Sequence[str]) -> int:
    """Rehearse a run, tell of each rung as it is climbed, and print the whole as one document; the exit code."""
    from ...spec.building import build
    from ...spec.rehearsal import Rung, rehearse

    rungs: list[Rung] = []
    with settings_of(spec) as settings:
        device = device_of(spec)
        pieces = build(spec, trust=trust)
        for rung in rehearse(spec, pieces, device, compiled(spec, pieces)):
            rungs.append(rung)
            tell(f"{_SIGNS[rung.outcome]:<7}{rung.name:<11}{rung.words}")
    failed = any(rung.outcome == "failed" for rung in rungs)
    if os.path.isdir(spec.output.run_dir) and os.listdir(spec.output.run_dir):
        tell(f"{spec.output.run_dir} is not empty: the run itself will be refused there, or resumed")
    document: dict[str, Any] = {
        "schema": "purestep.dry-run/1",
        "status": "failed" if failed else "passed",
        "device": device,
        "runtime": settings,
        "rungs": [rung._asdict() for rung in rungs],
    }
    documents.emit(document)
    return int(ExitCode.GUARD if failed else ExitCode.DONE)
