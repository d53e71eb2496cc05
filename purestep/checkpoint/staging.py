"""How a checkpoint directory comes into being and goes away: staging, commit, replacement, deletion, cleaning up after crashes.

A checkpoint is written into `.tmp-<name>-<uuid>` beside its final place, flushed, and gets its name in one rename. Nothing ever
reads a staging directory. COMMIT is its first file, empty and locked as long as the writer lives, and gets its content last: so a
later writer can tell a dead staging directory from one in use, also after SIGKILL and on another machine.
"""

import errno
import logging
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import CheckpointSaveError
from . import disk
from .manifest import COMMIT, KEEP, MANIFEST, commit_line

_log = logging.getLogger("purestep.checkpoint")
_STAGING = re.compile(r"\.tmp-(.+)-[0-9a-f]{32}")
_TRASH = re.compile(r"\.trash-[0-9a-f]{32}")
_LINK = re.compile(r"\.tmp-link-[0-9a-f]{32}")
# POSIX locks do not exclude the own process, hence this second record of what is being written
_live: set[str] = set()
_live_guard = threading.Lock()


class Staging(NamedTuple):
    """A directory being written, the open COMMIT file in it, and where it will go."""

    path: str
    commit_fd: int
    target: str


@contextmanager
def staging(target: str) -> Iterator[Staging]:
    """Open a staging directory for a checkpoint; whatever goes wrong inside removes it again."""
    parent, name = os.path.split(target)
    make_root(parent)
    path = os.path.join(parent, f".tmp-{name[:100]}-{uuid.uuid4().hex}")
    with _live_guard:
        _live.add(path)
    try:
        disk.make_dir(path)
        fd = disk.open_new(os.path.join(path, COMMIT))
        try:
            with suppress(OSError):  # a file system without locks: leftovers then stay where they are
                disk.try_lock(fd)
            yield Staging(path, fd, target)
        finally:
            disk.close(fd)
    except BaseException:
        with suppress(OSError):
            disk.remove_dir(path, last=COMMIT)
        raise
    finally:
        with _live_guard:
            _live.discard(path)


def make_root(path: str) -> None:
    """Create a directory and its missing parents, so that their names survive a power loss."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_root(parent)
    with suppress(FileExistsError):
        disk.make_dir(path)
    disk.sync_dir(parent)


def commit(stage: Staging, manifest_text: bytes) -> None:
    """Seal a staging directory and give it its final name.

    Order: manifest, COMMIT, directory, rename, parent; each is flushed before the next begins. When this returns, the checkpoint
    survives a power loss; before the rename nothing of it can be seen.
    """
    disk.write_file(os.path.join(stage.path, MANIFEST), [manifest_text])
    disk.write_all(stage.commit_fd, commit_line(manifest_text))
    disk.sync(stage.commit_fd)
    disk.sync_dir(stage.path)
    if os.path.lexists(stage.target) and os.listdir(stage.target):
        _replace(stage)
    else:
        disk.rename(stage.path, stage.target)
        disk.sync_dir(os.path.dirname(stage.target))


def _replace(stage: Staging) -> None:
    _exchange(stage)
    try:
        disk.sync_dir(os.path.dirname(stage.target))
    except OSError:
        with suppress(OSError):  # back to the old one, which is safe; the staging directory goes away with what is in it
            disk.exchange(stage.path, stage.target)
        raise
    with suppress(OSError):  # the old one is in the staging directory now, and durably replaced
        disk.remove_dir(stage.path, last=COMMIT)


def _exchange(stage: Staging) -> None:
    try:
        disk.exchange(stage.path, stage.target)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise
        raise CheckpointSaveError(
            f"{stage.target} exists, and this file system cannot replace a directory in one step ({error.strerror}); save to a new name"
        ) from error


def discard(path: str) -> None:
    """Delete a committed checkpoint so that no reader ever sees half of it: rename, flush, then remove."""
    parent = os.path.dirname(path)
    trash = os.path.join(parent, f".trash-{uuid.uuid4().hex}")
    disk.rename(path, trash)
    disk.sync_dir(parent)
    disk.remove_dir(trash)


def clean(root: str, name: str | None = None) -> list[str]:
    """Remove what crashed writers left in a root: dead staging directories and trash.

    Args:
        name: Only leftovers of this checkpoint; None for those of all.

    Returns:
        The removed paths.
    """
    removed = []
    for entry in sorted(os.listdir(root)):
        path = os.path.join(root, entry)
        try:
            if _remove_leftover(path, entry, name):
                removed.append(path)
        except OSError as error:
            _log.warning("could not remove %s: %s", path, error)
    return removed


def _remove_leftover(path: str, entry: str, name: str | None) -> bool:
    if os.path.islink(path):
        if name is None and _LINK.fullmatch(entry):
            disk.remove_file(path)
            return True
        return False
    if name is None and _TRASH.fullmatch(entry):
        disk.remove_dir(path)
        return True
    staged = _STAGING.fullmatch(entry)
    return staged is not None and (name is None or name[:100] == staged[1]) and _remove_dead(path)


def link_name(root: str) -> str:
    """A free name for a link that is to be renamed."""
    return os.path.join(root, f".tmp-link-{uuid.uuid4().hex}")


def _remove_dead(path: str) -> bool:
    with _live_guard:
        if path in _live:
            return False
        try:
            fd = disk.open_existing(os.path.join(path, COMMIT))
        except FileNotFoundError:
            # between mkdir and the first file; a writer that is still alive fails to open COMMIT and says so
            return disk.remove_empty_dir(path)
        try:
            dead = disk.try_lock(fd)
            if dead:
                disk.remove_dir(path, last=COMMIT)
            return dead
        finally:
            disk.close(fd)


def is_kept(path: str) -> bool:
    """Whether somebody put a KEEP file into a checkpoint."""
    return os.path.lexists(os.path.join(path, KEEP))
