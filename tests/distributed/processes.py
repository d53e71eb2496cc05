"""Real ranks for tests: processes that meet through a file, run one function, and report; whoever hangs is ended, and the test fails."""

import io
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import purestep as ps

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["tests.distributed.preloaded"])


class Ended(Exception):
    """What a rank raised, or how it ended."""


def run_ranks(
    world_size: int, function: Callable[..., Any], *args: Any, timeout_seconds: float = 60.0, wait_seconds: float = 20.0
) -> list[Any]:
    """What `function(topology, *args)` returns on each rank; raises `Ended` if a rank fails or is not done in time."""
    results = outcomes(world_size, function, *args, timeout_seconds=timeout_seconds, wait_seconds=wait_seconds)
    failures = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, Ended)]
    if failures:
        raise Ended("\n".join(failures))
    return results


def outcomes(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float = 60.0,
    wait_seconds: float = 20.0,
    collective_seconds: float | None = None,
) -> list[Any]:
    """The same, with an `Ended` in the place of each rank that failed."""
    waits = {"timeout_seconds": wait_seconds, "collective_timeout_seconds": collective_seconds}
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_context.Pipe(duplex=False) for _ in range(world_size)]
        workers = [
            _context.Process(target=_work, args=(rank, world_size, f"{folder}/store", waits, pipes[rank][1], function, args))
            for rank in range(world_size)
        ]
        for worker in workers:
            worker.start()
        for _, write in pipes:
            write.close()
        deadline = time.monotonic() + timeout_seconds
        try:
            return [_result(pipe[0], worker, deadline) for pipe, worker in zip(pipes, workers, strict=True)]
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def _result(pipe: Any, worker: Any, deadline: float) -> Any:
    if not pipe.poll(max(deadline - time.monotonic(), 0.0)):
        return Ended("did not end in time")
    try:
        kind, value = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
    except EOFError:
        worker.join(5)
        return Ended(f"ended with exit code {worker.exitcode}")
    return value if kind == "result" else Ended(value)


def _work(rank: int, world_size: int, store: str, waits: dict[str, Any], pipe: Any, function: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        topology = ps.distributed.init(rank=rank, world_size=world_size, method=f"file://{store}", device="cpu", **waits)
        report = ("result", function(topology, *args))
    except Exception as error:
        report = ("failure", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    written = io.BytesIO()
    torch.save(report, written)
    pipe.send_bytes(written.getvalue())
    ps.distributed.shutdown()
