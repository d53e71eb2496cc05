"""Where the console shows what it is told: drawn over in a terminal, as lines of text, as lines of JSON, or not at all."""

import collections
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO, get_args

from .layouts import DASHBOARD, LINE, Layout
from .view import View

Mode = Literal["auto", "rich", "plain", "json", "none"]
_ROWS_OF_A_DASHBOARD = 24  # of the terminal: the dashboard takes up to 22


class Display:
    """Shows nothing; the others override what they show."""

    def show(self, view: View) -> None:
        """Show a report of training."""

    def note(self, text: str, view: View | None = None) -> None:
        """Show a line of text."""

    def validated(self, text: str, view: View | None) -> None:
        """Show a validation."""
        self.note(text, view)

    def record(self, line: Mapping[str, Any]) -> None:
        """Show a report of any kind as it stands in the log."""

    def settle(self) -> None:
        """Show what waits."""

    def close(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""


def make_display(mode: Mode, layout: Layout | None, title: str, file: TextIO, seconds: float, clock: Callable[[], float]) -> Display:
    """The display of a mode.

    Raises:
        ValueError: If there is no such mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    chosen = ("rich" if can_redraw(file) else "plain") if mode == "auto" else mode
    if chosen == "rich":
        return _Drawing(layout, file)
    if chosen == "plain":
        return _WholeLines(title, file, seconds, clock)
    return _JsonLines(title, file) if chosen == "json" else Display()


def can_redraw(file: TextIO) -> bool:
    """Whether a line of this file can be drawn over: it is a terminal, one that knows how, and takes block characters."""
    encoding = (getattr(file, "encoding", None) or "utf-8").lower()
    return file.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown") and encoding.startswith("utf")


class _JsonLines(Display):
    """An object a line, for programs that watch."""

    def __init__(self, title: str, file: TextIO):
        self._title, self._file = {"title": title} if title else {}, file

    def note(self, text: str, view: View | None = None) -> None:
        self.record({"kind": "note", "text": text})

    def validated(self, text: str, view: View | None) -> None: ...  # its record says it

    def record(self, line: Mapping[str, Any]) -> None:
        print(json.dumps({**self._title, **line}, allow_nan=False, separators=(",", ":")), file=self._file, flush=True)


class _WholeLines(Display):
    """One line now and then, none of them ever changed."""

    def __init__(self, title: str, file: TextIO, seconds: float, clock: Callable[[], float]):
        self._title, self._file, self._seconds, self._clock = title, file, seconds, clock
        self._written_at: float | None = None
        self._waiting: str | None = None

    def show(self, view: View) -> None:
        now = self._clock()
        self._waiting = view.line
        if self._written_at is None or now - self._written_at >= self._seconds:
            self._written_at = now
            self.close()

    def note(self, text: str, view: View | None = None) -> None:
        title = f"{self._title}: " if self._title else ""
        print(f"{time.strftime('%H:%M:%S')} {title}{text}", file=self._file, flush=True)

    def settle(self) -> None:
        """Write the line that waits."""
        self.close()

    def close(self) -> None:
        text, self._waiting = self._waiting, None
        if text is not None:
            self.note(text)


class _Drawing(Display):
    """A layout, drawn anew when there are new numbers; no thread draws in between."""

    def __init__(self, layout: Layout | None, file: TextIO):
        from rich.console import Console

        class Screen(Console):
            """One whose reader may leave; rich would end the process."""

            def on_broken_pipe(self) -> None:
                raise  # what was caught by whoever calls this

        self._console = Screen(file=file, highlight=False)
        self._layout = layout or (DASHBOARD if self._console.height >= _ROWS_OF_A_DASHBOARD else LINE)
        self._messages: collections.deque[str] = collections.deque(maxlen=50)
        self._view: View | None = None
        self._live: Any = None

    def show(self, view: View) -> None:
        from rich.live import Live

        self._view = view
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._layout.draw(dataclasses.replace(view, messages=tuple(self._messages))), refresh=True)

    def note(self, text: str, view: View | None = None) -> None:
        self._messages.append(text)
        self._view = view or self._view
        if self._live is None or not self._layout.holds_messages:
            self._console.print(text, markup=False, soft_wrap=True)
        elif self._view is not None:
            self.show(self._view)

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
