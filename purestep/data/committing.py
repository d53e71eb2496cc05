"""Files of a commit: one writer at a time, everything on the disk before the one rename that makes it count."""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the right to append to a store, which one process at a time has.

    Raises:
        DataError: If another process holds it, or there is no such directory.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no store to append to; write_store makes one") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise DataError(f"{path}: another process is appending to this store; wait until it is done") from error
    finally:
        os.close(handle)


def replace_attributes(path: Path, attributes: Mapping[str, Any]) -> None:
    """Replace the attributes of a group in one rename."""
    file = path / "zarr.json"
    document = {**json.loads(file.read_text(encoding="utf-8")), "attributes": dict(attributes)}
    text = json.dumps(document, indent=2, allow_nan=False)
    temporary = path / f".zarr.json.{uuid.uuid4().hex}"
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path)


def sync(path: Path) -> None:
    """Bring a directory and all that is in it to the disk."""
    for directory, _, files in os.walk(path):
        for name in files:
            with open(Path(directory) / name, "rb") as handle:
                os.fsync(handle.fileno())
        sync_directory(Path(directory))


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
