"""Batches made ahead of time, in background threads or in other processes; the same batches in the same order.

At most `ahead` batches are held. Errors come where the batch would have come; a process that dies is an error at once, and nothing is
left running.
"""

import collections
import contextlib
import multiprocessing
import signal
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ..core import tree
from ..errors import DataError
from .loader import Loader

Workers = Literal["threads", "processes"]
Memory = Literal["pageable", "pinned"]


class Prefetched:
    """A loader whose batches are made in the background.

    Threads suit samples that are read, decompressed or made by NumPy and libraries, which release the interpreter; processes suit
    Python code, and what is given to them must be importable there. Close it, or use it in a `with`; it closes itself when dropped.

    Args:
        loader: Whose batches to make. Processes get a copy each.
        num_workers: Threads or processes.
        ahead: Most batches that are made or waiting at any time; at least 1.
        workers: "threads" or "processes", which are spawned and ignore Ctrl-C: it ends the main process, and that ends them.
        memory: "pinned" puts batches into page-locked memory, from which copies to a CUDA device run beside the computation.
    """

    def __init__(self, loader: Loader, num_workers: int = 2, *, ahead: int = 8, workers: Workers = "threads", memory: Memory = "pageable"):
        if num_workers < 1 or ahead < 1:
            raise ValueError(f"num_workers and ahead must be at least 1, got {num_workers} and {ahead}")
        if workers not in get_args(Workers) or memory not in get_args(Memory):
            raise ValueError(f"workers must be 'threads' or 'processes', memory 'pageable' or 'pinned'; got {workers!r}, {memory!r}")
        if memory == "pinned" and not torch.cuda.is_available():
            raise DataError("memory='pinned' needs a CUDA device, and there is none; leave it at 'pageable'")
        self.loader, self.num_workers, self.ahead, self.workers, self.memory = loader, num_workers, ahead, workers, memory
        self._open: tuple[Executor, Callable[[int, int], Future], weakref.finalize] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def fills_up(self) -> bool:
        """As of the loader."""
        return self.loader.fills_up

    @property
    def fingerprint(self) -> str:
        """That of the loader: the batches are the same."""
        return self.loader.fingerprint

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from number `start` on.

        Raises:
            DataError: Where a batch cannot be made, or a worker has died.
        """
        submit = self._started()
        pending: collections.deque[Future] = collections.deque()
        places = iter(range(start, len(self)))
        try:
            for index in places:
                pending.append(submit(epoch, index))
                if len(pending) == self.ahead:
                    yield self._finished(pending.popleft())
            while pending:
                yield self._finished(pending.popleft())
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """Stop the workers; a later epoch starts new ones."""
        if self._open is not None:
            self._open[2]()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a loader with workers stays in its process; hand its `loader` over")

    def _started(self) -> Callable[[int, int], Future]:
        if self._open is None:
            pool: Executor
            if self.workers == "threads":
                pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="purestep-data")
                submit = _submitter(pool, self.loader.batch)
            else:
                context = multiprocessing.get_context("spawn")
                pool = ProcessPoolExecutor(self.num_workers, context, initializer=_begin, initargs=(self.loader,))
                submit = _submitter(pool, _batch_in_worker)
            self._open = (pool, submit, weakref.finalize(self, _stop, pool))
        return self._open[1]

    def _finished(self, future: Future) -> Any:
        try:
            batch = future.result()
        except BrokenProcessPool as error:
            self.close()
            raise DataError(
                "a process that makes batches has died: killed for want of memory, or the loader cannot be copied to it; "
                "try fewer workers, or workers='threads'"
            ) from error
        if self.workers == "processes":
            batch = tree.map(_tensor, batch)
        if self.memory == "pinned":
            batch = tree.map(lambda leaf: leaf.pin_memory() if isinstance(leaf, Tensor) else leaf, batch)
        return batch


def _submitter(pool: Executor, call: Callable[[int, int], Any]) -> Callable[[int, int], Future]:
    def submit(epoch: int, index: int) -> Future:
        try:
            return pool.submit(call, epoch, index)
        except BrokenProcessPool as error:  # it died since the last batch; said where that batch is waited for
            failed: Future = Future()
            failed.set_exception(error)
            return failed

    return submit


def _stop(pool: Executor) -> None:
    pool.shutdown(wait=True, cancel_futures=True)


_loader: Loader | None = None  # of a worker process, which serves one loader


def _begin(loader: Loader) -> None:
    global _loader
    with contextlib.suppress(ValueError):  # outside the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _loader = loader


def _batch_in_worker(epoch: int, index: int) -> Any:
    assert _loader is not None
    return tree.map(_array, _loader.batch(epoch, index))


def _array(leaf: Any) -> Any:
    # arrays travel as plain bytes; shared memory would need a file descriptor for each tensor that is alive
    return leaf.numpy() if isinstance(leaf, Tensor) else leaf


def _tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
