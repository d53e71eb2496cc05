"""Every system call that changes or reads checkpoint files, and nothing else.

Files are written through unbuffered descriptors, so that what `sync` flushes is what was written. All calls go through the `os` of
this module, or through `swap_names`: tests put others in their place that kill the process, drop un-synced data or return errors.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import CheckpointCorruptError, CheckpointGoneError, CheckpointUnsafeError
from .hashing import Hash, hashing

SLICE = 8 << 20  # bytes per read or write: large enough for the disk, small enough for the hashing thread to keep up


class Written(NamedTuple):
    """Size and SHA-256 of a file as it was handed to the kernel; no hash where none was asked for."""

    num_bytes: int
    sha256: str | None


# --- writing ------------------------------------------------------------------------------------------------------


def make_dir(path: str) -> None:
    """Create one directory; an existing one is an error."""
    os.mkdir(path, 0o777)


def open_new(path: str) -> int:
    """Create a file for writing, with the permissions the umask leaves; an existing file or a link is an error."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def open_existing(path: str) -> int:
    """Open a file of somebody else for its lock; a link is an error."""
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def write_all(fd: int, block) -> int:
    """Write a whole block, however many calls it takes; give its size."""
    view = memoryview(block).cast("B")
    done = 0
    while done < len(view):  # a signal or a full disk can cut a write short
        done += os.write(fd, view[done : done + SLICE])
    return done


def sync(fd: int) -> None:
    """Flush a descriptor to the device.

    An error is final: Linux marks the failed pages clean, and a second fsync would wrongly succeed.
    """
    os.fsync(fd)


def sync_dir(path: str) -> None:
    """Flush the names in a directory to the device."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: str, blocks: Iterable, *, hash: Hash = "crc32c") -> Written:
    """Write blocks to a new file and flush it; its SHA-256 is computed beside the write, not before it."""
    total = 0
    with hashing(hash == "sha256") as hasher:
        fd = open_new(path)
        try:
            for block in blocks:
                if hasher is not None:
                    hasher.update(block)
                total += write_all(fd, block)
            sync(fd)
        finally:
            os.close(fd)
        return Written(total, None if hasher is None else hasher.digest())


def rename(source: str, target: str) -> None:
    """Give a directory its final name; a non-empty directory of that name is an error."""
    os.rename(source, target)


def exchange(first: str, second: str) -> None:
    """Swap two names in one atomic call.

    Raises:
        OSError: With `errno.ENOSYS` or `errno.EINVAL` where the system or the file system cannot do it.
    """
    swap_names(first, second)


def swap_names(first: str, second: str) -> None:
    """The system call behind `exchange`, which `os` lacks."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "this system has no renameat2") from error
    at_cwd, swap = -100, 2
    if renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), swap) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), first, None, second)


def remove_dir(path: str, last: str | None = None) -> None:
    """Delete a directory and what it holds; links inside are removed, never followed, and what is gone already is fine.

    Args:
        last: Name of the file that goes last.
    """
    try:
        with os.scandir(path) as entries:
            found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_dir in sorted(found, key=lambda entry: (os.path.basename(entry[0]) == last, entry[0])):
            remove_dir(inner) if is_dir else remove_file(inner)
        os.rmdir(path)
    except FileNotFoundError:
        pass


def remove_empty_dir(path: str) -> bool:
    """Delete a directory if it is empty; whether that was so."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    return True


def remove_file(path: str) -> None:
    """Delete a file; fine if it is gone already."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def point_link(path: str, target: str, scratch: str) -> None:
    """Make `path` a symbolic link to `target` in one atomic step; `scratch` is a free name beside it."""
    os.symlink(target, scratch)
    try:
        os.rename(scratch, path)
    except OSError:
        os.unlink(scratch)
        raise


def memory_bytes() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes(path: str) -> int:
    """Bytes that an ordinary user can still write on the file system of `path`."""
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


# --- locks --------------------------------------------------------------------------------------------------------


def open_lock(path: str) -> int:
    """Open a lock file, created if missing; a link is an error."""
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def overwrite(fd: int, text: bytes) -> None:
    """Replace the content of an open file; not flushed, for it is only information."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)


def try_lock(fd: int) -> bool:
    """Take the POSIX record lock of a file; False if another process has it.

    `lockf` rather than `flock`: a forked child keeps a flock alive after its parent was killed, and lockf also works on NFS. The
    lock does not exclude the own process, and closing any descriptor of the file drops it.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


# --- reading ------------------------------------------------------------------------------------------------------


@contextmanager
def open_regular(directory: str, name: str) -> Iterator[int]:
    """Open a regular file for reading; links, pipes and devices are refused without touching what they stand for.

    Raises:
        CheckpointUnsafeError: If it is anything but a regular file.
        CheckpointCorruptError: If it is missing.
        CheckpointGoneError: If the whole directory is gone.
    """
    path = os.path.join(directory, name)
    try:
        kind = os.lstat(path).st_mode
        if not stat.S_ISREG(kind):
            raise CheckpointUnsafeError(f"{path} is {describe_kind(kind)}, expected a regular file")
        # the second look, at the descriptor, closes the gap between the two calls; NONBLOCK, so that a pipe cannot hang the open
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise missing(directory, name) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CheckpointUnsafeError(f"{path} is a symbolic link, expected a regular file") from error
        raise
    try:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            raise CheckpointUnsafeError(f"{path} is {describe_kind(kind)}, expected a regular file")
        yield fd
    finally:
        os.close(fd)


def missing(directory: str, name: str) -> Exception:
    """The error for a file that is not there: lost, or deleted with its whole directory by retention."""
    if not os.path.lexists(directory):
        return CheckpointGoneError(f"{directory} was deleted while it was being read; load the next one")
    return CheckpointCorruptError(f"{directory}: {name} is missing")


def describe_kind(mode: int) -> str:
    """What a file is, in words."""
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    return next((text for test, text in kinds if test(mode)), "a device" if not stat.S_ISREG(mode) else "a regular file")


def file_size(fd: int) -> int:
    """Bytes of an open file."""
    return os.fstat(fd).st_size


def read_into(fd: int, view: memoryview, offset: int = 0) -> int:
    """Fill a writable byte view from a position of the file; fewer bytes than its size mean the end of the file."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done : done + SLICE]], offset + done)
        if got == 0:
            break
        done += got
    return done


def read_small(directory: str, name: str, limit: int) -> bytes:
    """Read a whole small file.

    Raises:
        CheckpointUnsafeError: If it is larger than `limit` bytes; it is not read then.
    """
    with open_regular(directory, name) as fd:
        size = file_size(fd)
        if size > limit:
            raise CheckpointUnsafeError(f"{os.path.join(directory, name)} has {size} bytes, at most {limit} are allowed")
        content = bytearray(size)
        return bytes(content[: read_into(fd, memoryview(content))])
