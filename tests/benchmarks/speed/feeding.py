"""Trainers that own their loop: they run in a thread and are fed batches, as many as a round asks for, and sleep in between.

So one `fit` lasts for all rounds, and setting it up is no part of the time of a step.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

ENDLESS = 10**9
"""Batches that a loader says it has; more than are ever asked for."""


class Feed:
    """What a trainer takes for its data loader. It has a length, so that nobody reads ahead to find the end."""

    def __init__(self, batches: Iterator[Any]):
        self.batches = batches
        self.asked: SimpleQueue[int] = SimpleQueue()
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from itertools.islice(self.batches, self.asked.get())
            self.done.put(None)  # asked for another batch: the last step is done


def in_background(train: Callable[[Feed], Any], batches: Iterator[Any]) -> Callable[[int], None]:
    """Start a training on endless batches; returns what lets it go on for so many of them, and waits until they are done."""
    feed = Feed(batches)

    def work() -> None:
        try:
            train(feed)
            raise RuntimeError("the training ended by itself")
        except BaseException as error:
            feed.done.put(error)

    threading.Thread(target=work, daemon=True).start()

    def run(steps: int) -> None:
        feed.asked.put(steps)
        error = feed.done.get()
        if error is not None:
            raise error

    return run
