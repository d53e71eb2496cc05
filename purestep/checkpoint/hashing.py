"""SHA-256 of what is being read or written, in a second thread beside it."""

import hashlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Hash = Literal["sha256", "crc32c"]
MAX_QUEUED = 8  # blocks that wait for the thread


class Hasher:
    """SHA-256 of blocks, computed in a second thread beside the reads or writes that fill them.

    Blocks must not change until `digest` has returned.
    """

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._blocks: queue.Queue = queue.Queue(maxsize=MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="purestep-sha256", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            self._sha.update(block)

    def update(self, block) -> None:
        """Queue one block; waits while `MAX_QUEUED` are queued already."""
        self._blocks.put(block)

    def digest(self) -> str:
        """Wait for the thread to end, and give the hexadecimal digest of all blocks."""
        self._blocks.put(None)
        self._thread.join()
        return self._sha.hexdigest()


@contextmanager
def hashing(wanted: bool) -> Iterator[Hasher | None]:
    """A hasher, if one is wanted, whose thread has ended when the block is left."""
    hasher = Hasher() if wanted else None
    try:
        yield hasher
    finally:
        if hasher is not None:
            hasher.digest()
