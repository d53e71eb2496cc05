"""Runs that are over: taking one up again is no failure, but nothing is left to do, and nothing of it is written anew."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import documents
from ..exits import ExitCode, tell
from ..run_directory import command_line
from ..runs.finding import status_of
from .beginning import Start
from .granting import words_of

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...spec.envelope import Spec

_LENGTHS = {"num_steps": ("step_count", "updates"), "num_epochs": ("epoch_count", "epochs"), "num_batches": ("batch_count", "batches")}
"""How long a run is: the counter that says so, and what it counts."""


def nothing_to_do(spec: "Spec", run_dir: str, start: Start, trust: Sequence[str], topology: "Topology") -> int | None:
    """The exit code where a run has finished and its checkpoint is at the length of the spec, which is told; else None.

    One that came to its length but did not finish, because its last validation or its page failed, has something left to do.
    """
    length = next((name for name in _LENGTHS if getattr(spec.strategy, name) is not None), None)
    if length is None or status_of(run_dir).get("status") != "finished":
        return None
    from ...checkpoint.store import list_checkpoints

    found = [one.manifest for one in list_checkpoints(start.root) if start.step in (None, one.manifest.label)]
    counts = {name: found[-1].counters[name] for name in ("step_count", "batch_count", "epoch_count")}
    (counter, unit), wanted = _LENGTHS[length], getattr(spec.strategy, length)
    if counts[counter] < wanted:
        return None
    if topology.rank == 0:
        longer = command_line("purestep", "spec", "resume", run_dir, "--set", f"strategy.{length}={2 * wanted}", *words_of(trust))
        tell(
            f"nothing to do: the run has its {wanted} {unit}; raise strategy.{length} or begin another run",
            f"  for instance: {longer}",
        )
        documents.emit({"schema": "purestep.run/1", "status": "finished", "run_dir": run_dir, **counts})
    return int(ExitCode.DONE)
