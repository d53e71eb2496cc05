"""An operating system that fails on command: kills, errors, short writes, and a record of every call for the power-loss model."""

import contextlib
import errno
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from purestep.checkpoint import disk

CHANGES = {"mkdir", "open", "write", "fsync", "close", "rename", "unlink", "rmdir", "symlink", "ftruncate", "pwrite"}
READS = {"scandir", "lstat", "fstat", "preadv", "statvfs"}
SWAP = "swap_names"


class Call(NamedTuple):
    """One call that changes something, with what it returned."""

    name: str
    args: tuple
    result: Any


class FaultyOS:
    """The `os` module, with a hook before every counted call.

    Args:
        before: Called with the number and the name of the call, and the function that does it; may kill, raise, or do it otherwise.
    """

    def __init__(self, before: Callable[[int, str, Callable, tuple], Any]) -> None:
        self.before, self.count, self.log = before, 0, []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.counted(name, real) if name in CHANGES | READS else real

    def counted(self, name: str, real: Callable) -> Callable:
        def call(*args, **kwargs):
            number, self.count = self.count, self.count + 1
            result = self.before(number, name, lambda: real(*args, **kwargs), args)
            self.log.append(Call(name, args, result))
            return result

        return call

    def __enter__(self) -> "FaultyOS":
        self._kept = disk.os, disk.swap_names
        disk.os, disk.swap_names = self, self.counted(SWAP, disk.swap_names)
        return self

    def __exit__(self, *_) -> None:
        disk.os, disk.swap_names = self._kept


def watching() -> FaultyOS:
    """Count and record only."""
    return FaultyOS(lambda number, name, do, args: do())


def killing_at(point: int) -> FaultyOS:
    """Die before a call; odd points die in the middle of a write, or after the call if it is none.

    Every call has two points, `2 n` and `2 n + 1`.
    """

    def before(number: int, name: str, do: Callable, args: tuple) -> Any:
        if number != point // 2:
            return do()
        if point % 2:
            os.write(args[0], bytes(args[1])[: len(args[1]) // 2]) if name == "write" else do()
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return FaultyOS(before)


def failing_at(point: int, code: int, names: set[str], *, forever: bool = True) -> FaultyOS:
    """Raise an error at one call of the given names, and at all later ones of those names if `forever`."""
    seen = [0]

    def before(number: int, name: str, do: Callable, args: tuple) -> Any:
        if name not in names:
            return do()
        seen[0] += 1
        if seen[0] - 1 == point or (forever and seen[0] - 1 > point):
            if name == "close":
                do()
            raise OSError(code, os.strerror(code))
        return do()

    return FaultyOS(before)


def writing_short() -> FaultyOS:
    """Write at most seven bytes per call, and read at most five."""

    def before(number: int, name: str, do: Callable, args: tuple) -> Any:
        if name == "write":
            return os.write(args[0], bytes(args[1])[:7])
        return os.preadv(args[0], [args[1][0][:5]], args[2]) if name == "preadv" else do()

    return FaultyOS(before)


# --- processes ----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a child ended: killed, how many saves it had acknowledged, its error text."""

    killed: bool
    acknowledged: list[int]
    error: str


def in_child(work: Callable[[Callable[[int], None]], Any], faults: FaultyOS | None = None) -> Outcome:
    """Run `work(acknowledge)` in a forked process, which a fault may kill."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            with faults or watching():
                work(lambda number: os.write(write, b"%d\n" % number))
            code = 0
        except BaseException:
            os.write(write, b"E" + traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    numbers, _, error = said.partition("E")
    return Outcome(os.WIFSIGNALED(status), [int(line) for line in numbers.split()], error)


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.distributed.preloaded"])  # there is one such server, so the same for all tests


def in_new_process(work: Callable[..., Any], *args: Any) -> Outcome:
    """Run `work(acknowledge, *args)` in a process that never trained before: autograd with a device's threads cannot be forked."""
    read, write = _context.Pipe(duplex=False)
    process = _context.Process(target=_tell, args=(write, work, args))
    process.start()
    write.close()
    said: list[Any] = []
    with contextlib.suppress(EOFError):
        while True:
            said.append(read.recv())
    process.join()
    return Outcome(process.exitcode < 0, [n for n in said if isinstance(n, int)], "".join(s for s in said if isinstance(s, str)))


def _tell(write: Any, work: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    try:
        work(write.send, *args)
    except BaseException:
        write.send(traceback.format_exc())
        raise SystemExit(1) from None


ERRORS = {"disk full": errno.ENOSPC, "I/O error": errno.EIO, "read-only": errno.EROFS, "no permission": errno.EACCES}
