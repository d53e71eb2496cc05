"""What each rank says of itself: a small file with where it stands, and listeners that hear on every rank."""

import json
import os
import socket
import time
from typing import Any, Self

from ..core.event import Event, Listener, Stop
from ..core.hook import Stage
from .topology import Topology


def on_every_rank(listener: Listener) -> Listener:
    """A listener that hears on every rank, not on rank 0 alone; for logs of each rank, say.

    Example:
        >>> rank = ps.distributed.init().rank
        >>> log = ps.distributed.on_every_rank(lambda event: print(rank, event.stage))
    """
    return _OnEveryRank(listener)


class _OnEveryRank:
    on_every_rank = True

    def __init__(self, listener: Listener):
        self.listener = listener
        self.hears_errors = getattr(listener, "hears_errors", False)

    def __call__(self, event: Event) -> Stop | None:
        return self.listener(event)


class RankStatus:
    """Listener that keeps `rank-00003.json` in a folder up to date, one for each rank.

    It says `state` (`running`, `done` or `failed`), counters, host and process, the time, and of a failed run the error and, as
    `no_word_from`, the ranks that were not heard of any more. A rank that was killed leaves `running` and the time of its last word.
    What goes wrong outside of `fit` is known to its `with` block.

    Args:
        folder: Of the files; made if it is not there.
        topology: From `init`.
        every_seconds: Least time between two words of a running rank.

    Example:
        >>> import tempfile
        >>> with ps.distributed.RankStatus(tempfile.mkdtemp(), ps.distributed.init()) as status:
        ...     pass  # ps.fit(training, batches, num_steps=1000, listeners=[status])
    """

    on_every_rank, hears_errors = True, True

    def __init__(self, folder: str | os.PathLike, topology: Topology, *, every_seconds: float = 10.0):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(os.fspath(folder), f"rank-{topology.rank:05d}.json")
        self.topology, self.every_seconds = topology, every_seconds
        self._last = float("-inf")
        self._counters: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Say where this rank stands, if it is time, or what has gone wrong."""
        self._counters = {"batch_count": event.batch_count, "epoch_count": event.epoch_count, "stage": event.stage.name}
        if event.error is not None:
            self._say_failed(event.error)
        elif event.stage is Stage.AFTER_TRAINING:
            self._say("done")
        elif event.stage is Stage.SETUP or time.monotonic() - self._last >= self.every_seconds:
            self._say("running")
            self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._say_failed(error)

    def _say_failed(self, error: BaseException) -> None:
        self._say("failed", error=f"{type(error).__name__}: {error}", no_word_from=list(getattr(error, "no_word_from", ())))

    def _say(self, state: str, **more: Any) -> None:
        place = {"rank": self.topology.rank, "world_size": self.topology.world_size, "host": socket.gethostname(), "pid": os.getpid()}
        text = json.dumps({"state": state, **place, **self._counters, "time": time.time(), **more})
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{self.path}.new", self.path)  # a reader sees the old words or the new ones
