"""Ranks that this process starts itself, on this machine and for one function, and ends when time is up. Runs are started by torchrun.

They meet through a file in a folder of their own, so they never come into the way of a group that this process, or another, belongs to.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from ..errors import DistributedError
from .topology import init, shutdown

_GRACE_SECONDS = 5.0  # for the other ranks, once one has failed


def run_on_local_processes(world_size: int, function: Callable[..., object], *args: Any, seconds: float) -> None:
    """Call `function(topology, *args)` on each of some new processes, on the CPU, and wait.

    They have nothing of this process but its environment and `sys.path`; what they print goes to stderr.

    Args:
        function: Of a module that can be imported.
        args: What can be pickled.
        seconds: How long they may take, from their start.

    Raises:
        DistributedError: If a rank fails, or is not done in time; with what each of those says. None of them is running any more.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA, threads and the connections of this process
    with tempfile.TemporaryDirectory(prefix="purestep-ranks-") as folder:
        workers = [
            context.Process(target=_be_rank, args=(rank, world_size, folder, seconds, function, args), daemon=True)
            for rank in range(world_size)
        ]
        try:
            for worker in workers:
                worker.start()
            _wait_for(workers, seconds)
            ends = [_end_of(worker, _error_file(folder, rank), seconds) for rank, worker in enumerate(workers)]
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()
                    worker.join()
    if any(ends):
        alike = {end: [str(rank) for rank, other in enumerate(ends) if other == end] for end in ends if end}
        told = [f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(ranks)} {end}" for end, ranks in alike.items()]
        raise DistributedError("; ".join(told))


def _wait_for(workers: Sequence[Any], seconds: float) -> None:
    """Wait until all have ended; not for long once one has failed."""
    running: dict[Any, Any] = {worker.sentinel: worker for worker in workers}
    deadline = time.monotonic() + seconds
    while running and (left := deadline - time.monotonic()) > 0:
        for ended in connection.wait(list(running), left):
            worker = running.pop(ended)
            worker.join()
            if worker.exitcode != 0:
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)


def _end_of(worker: Any, path: str, seconds: float) -> str:
    """How a process ended that did not come through; empty for one that did."""
    if worker.exitcode is None:
        return f"did not end within {seconds:.0f} s, or soon after another had failed"
    if worker.exitcode == 0:
        return ""
    if not os.path.exists(path):
        return f"ended with exit code {worker.exitcode}"
    with open(path, encoding="utf-8") as file:
        return f"failed: {file.read()}"


def _error_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"rank-{rank}.txt")


def _be_rank(rank: int, world_size: int, folder: str, seconds: float, function: Callable[..., object], args: Sequence[Any]) -> None:
    os.dup2(2, 1)  # stdout is for the result of the program that started this one, whatever the user's code prints
    try:
        patience = {"timeout_seconds": seconds, "collective_timeout_seconds": seconds}
        topology = init(rank=rank, world_size=world_size, method=f"file://{folder}/meeting", device="cpu", **patience)
        function(topology, *args)
    except Exception as error:
        with open(_error_file(folder, rank), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None
    finally:
        shutdown()
