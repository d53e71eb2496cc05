"""Ending a run on a signal, between two batches, with its checkpoint written."""

import signal
from types import FrameType
from typing import Any, Self

from ..core.event import Event, Stop
from ..core.hook import Stage


class StopOnSignal:
    """Listener that asks the run to end after the batch in which a signal came: `Stop("SIGTERM")`.

    A context: while it is open the signals do no more than that, afterwards they do what they did before. The second one of a kind does so
    at once, for those in a hurry. Only the main thread of a process can open it.

    Args:
        signals: Which to hear; by default SIGINT, SIGTERM and SIGUSR1, which schedulers send some time before they kill.

    Raises:
        RuntimeError: At the first event, if it is not open: it would hear nothing.

    Example:
        with StopOnSignal() as stop:
            result = ps.fit(training, batches, num_epochs=10, listeners=[stop])
    """

    on_every_rank = True  # a signal may reach any of the processes

    def __init__(self, *signals: signal.Signals):
        self._signals = signals or (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        """The first signal that came."""

    def __call__(self, event: Event) -> Stop | None:
        """Ask for the end if a signal came."""
        if not self._before:
            raise RuntimeError("StopOnSignal is not open, so it hears nothing: write `with StopOnSignal() as stop:` around fit")
        if self.received is None or event.stage not in (Stage.BEFORE_TRAINING, Stage.AFTER_BATCH):
            return None
        return Stop(self.received.name)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in self._signals}
        return self

    def __exit__(self, *failure: object) -> None:
        for number in self._before:
            self._restore(number)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number) if self.received is None else self.received
        self._restore(signal.Signals(number))

    def _restore(self, number: signal.Signals) -> None:
        handler = self._before[number]
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
