"""Which process this is, of how many, and the connection between them.

`init` reads what torchrun or Slurm have set; a process that nobody else knows of is a world of one and needs no connection.
"""

import atexit
import dataclasses
import datetime
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ..core.ranks import ALONE, Ranks
from ..errors import DistributedError
from .collective import sum_in_place, sum_over, use_store

_FIRST_PORT, _NUM_PORTS = 20000, 20000  # of Slurm jobs, chosen by their number


@dataclasses.dataclass(frozen=True)
class Topology:
    """The place of this process among all."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Among the processes of this machine."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is immutable
    """Where this process computes."""

    @property
    def ranks(self) -> Ranks:
        """What the step knows of it."""
        sums = (functools.partial(total, world_size=self.world_size) for total in (sum_over, sum_in_place))
        return ALONE if self.world_size == 1 else Ranks(self.rank, self.world_size, *sums)


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    method: str = "env://",
    device: torch.device | str | None = None,
    timeout_seconds: float = 60.0,
    collective_timeout_seconds: float | None = None,
) -> Topology:
    """Join the other processes, and say which one this is.

    Tensors on the host are summed by gloo, those on CUDA devices by NCCL. Calling it again is free.

    Args:
        rank: Ours; by default from `RANK` (torchrun) or `SLURM_PROCID`.
        world_size: How many there are; by default from `WORLD_SIZE` or `SLURM_STEP_NUM_TASKS`.
        method: Where they meet, as in `torch.distributed.init_process_group`: `"env://"`, `"file:///shared/path"`, `"tcp://host:port"`.
        device: Where to compute; by default the CUDA device of the local rank if there is one, else the CPU.
        timeout_seconds: How long a rank waits at the start until all others are there.
        collective_timeout_seconds: How long a rank waits in a collective for one that is alive but does not come, which is how long the
            slowest may compile, validate or save on its own; by default as long as at the start. Of a rank that died the others hear at
            once where its connection breaks.

    Raises:
        DistributedError: If the others do not come, or the variables contradict each other.
    """
    place = {"RANK": rank, "WORLD_SIZE": world_size} if rank is not None else read_environment(os.environ)
    own, size = place["RANK"] or 0, place["WORLD_SIZE"] or 1
    local = int(place.get("LOCAL_RANK") or (own if rank is not None else 0))
    if not 0 <= own < size:
        raise DistributedError(f"distributed.init: rank {own} of a world of {size}; ranks run from 0 to {size - 1}")
    where = _device(device, local)
    if size > 1 and not dist.is_initialized():
        if method == "env://":
            _set_meeting_point(os.environ)
        backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
        start = datetime.timedelta(seconds=timeout_seconds)
        patience = start if collective_timeout_seconds is None else datetime.timedelta(seconds=collective_timeout_seconds)
        try:
            store, *_ = next(rendezvous(method, own, size, timeout=start))
            # torchrun may keep its store for the next life of the ranks, which must not find the addresses of the last one in it
            life = dist.PrefixStore(f"life {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            _meet(dist.PrefixStore("arrivals", life), own, size, start)
            use_store(dist.PrefixStore("failures", life))
            dist.init_process_group(backend, store=life, rank=own, world_size=size, timeout=patience)
            # threads of gloo that are alive when the interpreter has gone abort the process, a program at its end included
            atexit.register(shutdown)
        except DistributedError:
            raise
        except (RuntimeError, ValueError, KeyError) as error:
            raise DistributedError(
                f"distributed.init: rank {own} could not meet the other {size - 1} at {method} within {timeout_seconds:g} s: {error}"
            ) from error
    return Topology(own, size, local, where)


def _meet(store: dist.Store, own: int, size: int, timeout: datetime.timedelta) -> None:
    """Wait until all ranks are there; how long they wait for each other later is another matter.

    Raises:
        DistributedError: Naming those that have not come.
    """
    store.set(f"rank {own}", "here")
    try:
        store.wait([f"rank {rank}" for rank in range(size)], timeout)
    except RuntimeError as error:
        missing = [rank for rank in range(size) if not store.check([f"rank {rank}"])]
        raise DistributedError(
            f"distributed.init: rank {own} could not meet rank {', '.join(map(str, missing))} of {size} within "
            f"{timeout.total_seconds():g} s: not started, or looking for the others elsewhere; see their logs"
        ) from error


def shutdown() -> None:
    """Leave the others; a world of one has nothing to leave."""
    if dist.is_initialized():
        dist.destroy_process_group()


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`RANK`, `WORLD_SIZE` and `LOCAL_RANK` as torchrun or Slurm (in a step of `srun`) set them; a world of one if neither did.

    Raises:
        DistributedError: If only one of the two is there, or it is no number.
    """
    names = {"RANK": "RANK", "WORLD_SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK"}
    if "RANK" not in environment and "WORLD_SIZE" not in environment and "SLURM_STEP_NUM_TASKS" in environment:
        names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    found = {name: environment[source] for name, source in names.items() if source in environment}
    if not found.keys() & {"RANK", "WORLD_SIZE"}:
        return {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    missing = [names[name] for name in ("RANK", "WORLD_SIZE") if name not in found]
    if missing:
        raise DistributedError(f"distributed.init: {missing[0]} is not set, though its companion is; start the ranks with torchrun or srun")
    try:
        return {"LOCAL_RANK": 0, **{name: int(value) for name, value in found.items()}}
    except ValueError:
        raise DistributedError(f"distributed.init: {found} must be whole numbers") from None


def first_host(nodes: str) -> str:
    """The first machine of a Slurm node list.

    Example:
        >>> first_host("gpu[07-09,12],cpu1"), first_host("login1,gpu2")
        ('gpu07', 'login1')
    """
    head = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    if head is None:
        raise DistributedError(f"distributed.init: cannot read the Slurm node list {nodes!r}; set MASTER_ADDR")
    return head[1] + (head[2] or "")


def _set_meeting_point(environment: Any) -> None:
    """Where a Slurm step has no meeting point, its first machine and a port by the job's number."""
    if "SLURM_STEP_NODELIST" in environment:
        environment.setdefault("MASTER_ADDR", first_host(environment["SLURM_STEP_NODELIST"]))
        environment.setdefault("MASTER_PORT", str(_FIRST_PORT + int(environment.get("SLURM_JOB_ID", "0")) % _NUM_PORTS))


def _device(device: torch.device | str | None, local_rank: int) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", local_rank if chosen.index is None else chosen.index)
        torch.cuda.set_device(chosen)
    return chosen
