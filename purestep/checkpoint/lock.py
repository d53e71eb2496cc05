"""One writer per root: a kernel lock that vanishes with its process."""

import errno
import json
import logging
import os
import socket
import threading
from typing import NamedTuple

from ..errors import CheckpointSaveError
from . import disk

LOCK = ".lock"
_log = logging.getLogger("purestep.checkpoint")
# a POSIX lock does not exclude the own process
_held: set[str] = set()
_guard = threading.Lock()


class RootLock(NamedTuple):
    """A locked root; the descriptor holds the lock."""

    root: str
    fd: int


def lock_root(root: str) -> RootLock:
    """Become the only writer of a root.

    Raises:
        CheckpointSaveError: If another writer has it; the message names it.
    """
    root = os.path.realpath(root)
    path = os.path.join(root, LOCK)
    with _guard:
        if root in _held:
            raise CheckpointSaveError(f"checkpoint root {root} is locked by another Checkpointer of this process; close that one first")
        fd = disk.open_lock(path)
        try:
            if not _try(fd, root):
                raise CheckpointSaveError(f"checkpoint root {root} is locked by another writer ({_holder(fd)}); choose another root")
            disk.overwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        except BaseException:
            disk.close(fd)
            raise
        _held.add(root)
    return RootLock(root, fd)


def unlock_root(lock: RootLock) -> None:
    """Let another writer have the root; the lock file stays."""
    with _guard:
        if lock.root in _held:
            _held.discard(lock.root)
            disk.close(lock.fd)


def _try(fd: int, root: str) -> bool:
    try:
        return disk.try_lock(fd)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        _log.warning("%s: this file system has no locks; make sure that nothing else writes there", root)
        return True


def _holder(fd: int) -> str:
    text = os.pread(fd, 1024, 0).decode(errors="replace")
    try:
        holder = json.loads(text)
        return f"pid {holder['pid']}, host {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "unknown"
