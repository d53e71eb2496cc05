"""Processes that share a run: torchrun or srun start `spec run` several times, and each finds its place here.

Rank 0 has the directory of the run and the console; the others write what they have to say into `ranks/`. One process is no special case
of this: nothing here does anything then.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..exits import ExitCode, Refusal
from ..preparing import device_of
from ..run_directory import command_line
from .messages import kept_messages

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...spec.building import Pieces
    from ...spec.envelope import Spec


@contextlib.contextmanager
def joined(spec: "Spec", **patience: float) -> Iterator["Topology"]:
    """The place of this process among all; the connection ends with the context.

    Args:
        patience: Timeouts in the place of the spec's.

    Raises:
        Refusal: If the device is missing.
        DistributedError: If the others do not come.
    """
    from ...distributed import Topology, init, shutdown
    from ...distributed.topology import read_environment

    if read_environment(os.environ)["WORLD_SIZE"] == 1:
        yield Topology()
        return
    own = spec.runtime.distributed.model_dump(include={"timeout_seconds", "collective_timeout_seconds"})
    topology = init(device=device_of(spec), **(own | patience))
    try:
        yield topology
    finally:
        shutdown()


def check_started_as_asked(distributed: bool | None, path: str) -> None:
    """Refuse to run alone where several processes were asked for, and the other way round.

    Args:
        distributed: What was asked for; None: whatever is.
        path: Of the spec, for the advice.

    Raises:
        Refusal: With the line that does what was asked.
    """
    from ...distributed.topology import read_environment

    launched = any(name in os.environ for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    size = read_environment(os.environ)["WORLD_SIZE"]
    run = command_line("purestep", "spec", "run", path)
    if distributed and not launched:
        message = "--distributed: no launcher started this process, so there are no others to share the run with"
        raise Refusal(message, ExitCode.USAGE, [f"torchrun --nproc_per_node=2 -m {run} --distributed"])
    if distributed is False and size > 1:
        message = f"--no-distributed: this is one of {size} processes that were started together, and each would write the same run"
        raise Refusal(message, ExitCode.USAGE, [f"{run} --no-distributed", "without torchrun or srun in front of it"])


def is_shared(spec: "Spec", distributed: bool | None) -> bool:
    """Whether a run is to have several ranks: what was asked for, else as it was started, else if the spec says how ranks share it."""
    from ...distributed.topology import read_environment
    from ...spec.envelope import Distributed

    if distributed is not None:
        return distributed
    return read_environment(os.environ)["WORLD_SIZE"] > 1 or spec.runtime.distributed != Distributed()


def on_rank_zero(topology: "Topology", action: Callable[[], Any]) -> Any:
    """Do something on rank 0 only; if it fails there, no rank goes on."""
    return topology.ranks.together(lambda: action() if topology.rank == 0 else None)


@contextlib.contextmanager
def apart(topology: "Topology", run_dir: str) -> Iterator[None]:
    """What this rank says, in a file of its own; the one that has the console keeps a copy of all but its progress."""
    if topology.rank == 0:
        with kept_messages(run_dir):
            yield
        return
    folder = os.path.join(run_dir, "ranks")
    os.makedirs(folder, exist_ok=True)
    with (
        open(os.path.join(folder, f"rank-{topology.rank:05d}.log"), "a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield


def shared(spec: "Spec", pieces: "Pieces", topology: "Topology") -> "Pieces":
    """The pieces of this rank: each batch is shared, and so is the validation.

    Raises:
        Refusal: If batches cannot be cut among so many.
        SpecError: If first weights that are loaded whole would be needed in parts.
    """
    if topology.world_size == 1:
        return pieces
    from ...distributed import shard
    from ...spec.sharing import shared_training

    training = shared_training(spec, pieces.training, topology)
    try:
        batches = shard(pieces.batches, topology)
    except ValueError as error:
        raise Refusal(f"/dataset: {error}", ExitCode.SPEC) from error
    return pieces._replace(training=training, batches=batches, validation=_shared_validation(pieces.validation, topology))


def _shared_validation(validation: Any, topology: "Topology") -> Any:
    """The validation with this rank's share of each batch; frames that fill up the last one do not count."""
    if validation is None:
        return None
    from ...data import Loader

    whole = validation.data
    own = -(-whole.plan.batch_size // topology.world_size)
    place = {"collate": whole.collate, "rank": topology.rank, "world": topology.world_size}
    return dataclasses.replace(validation, data=Loader(whole.dataset, own, shuffle=False, last="pad", **place))
