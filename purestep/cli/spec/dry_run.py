"""`purestep spec run --dry-run`: every part of a run tried with one batch, where the run would be; nothing is written into it.

Where torchrun or srun started several processes, rank 0 rehearses while the others wait; all end with its exit code.
"""

import functools
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import documents
from ..exits import ExitCode, end, tell
from ..preparing import compiled, device_of, settings_of
from .ranks import is_shared, joined, shared

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...spec.envelope import Spec

_SIGNS = {"passed": "ok", "failed": "FAILED", "not needed": "-", "not tried": "?"}
_LATER_SECONDS = 3.0  # torchrun ends all ranks when one has failed, and names that one: let it be the one that says why
_WAIT_SECONDS = 86_400.0  # for rank 0, which may compile; of one that dies the others hear at once


class Rehearsal(NamedTuple):
    """What is to be rehearsed."""

    spec: "Spec"
    trust: Sequence[str]
    distributed: bool | None
    """What the command line says of ranks; None: nothing."""
    num_batches: int
    """Trained on in a row."""


def rehearse_run(rehearsal: Rehearsal) -> int:
    """Rehearse a run, tell of each rung as it is climbed, and print the whole as one document; the exit code, the same on every rank."""
    with joined(rehearsal.spec, collective_timeout_seconds=_WAIT_SECONDS) as topology:
        own = _code_of(rehearsal, topology) if topology.rank == 0 else ExitCode.DONE
        code = int(topology.ranks.tell(str(int(own))))
    if code != ExitCode.DONE and topology.rank != 0:
        time.sleep(_LATER_SECONDS)
    return code


def _code_of(rehearsal: Rehearsal, topology: "Topology") -> int:
    """The exit code, whatever happens: the other ranks wait for it."""
    try:
        return _rehearse(rehearsal, topology)
    except (Exception, KeyboardInterrupt) as error:
        return end(error)


def _rehearse(rehearsal: Rehearsal, topology: "Topology") -> int:
    from ...spec.building import build
    from ...spec.rehearsal import rehearse
    from ...spec.rung import Rung
    from ...spec.two_ranks import try_two_ranks

    spec, rungs = rehearsal.spec, list[Rung]()
    ranks = functools.partial(try_two_ranks, spec, rehearsal.trust) if is_shared(spec, rehearsal.distributed) else None
    with settings_of(spec) as settings:
        device = device_of(spec)
        pieces = build(spec, trust=rehearsal.trust)
        shared(spec, pieces, topology)  # refused here if the run would be
        for rung in rehearse(spec, pieces, device, compiled(spec, pieces), ranks=ranks, num_batches=rehearsal.num_batches):
            rungs.append(rung)
            tell(f"{_SIGNS[rung.outcome]:<7}{rung.name:<11}{rung.words}")
    failed = any(rung.outcome == "failed" for rung in rungs)
    if os.path.isdir(spec.output.run_dir) and os.listdir(spec.output.run_dir):
        tell(f"{spec.output.run_dir} is not empty: `spec run` needs a new one, or one whose start failed; `spec resume` goes on with a run")
    document: dict[str, Any] = {
        "schema": "purestep.dry-run/1",
        "status": "failed" if failed else "passed",
        "device": device,
        "runtime": settings,
        "rungs": [rung._asdict() for rung in rungs],
    }
    documents.emit(document)
    return int(ExitCode.GUARD if failed else ExitCode.DONE)
