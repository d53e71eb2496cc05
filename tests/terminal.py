"""Commands in a real terminal: what they write goes through a pseudo-terminal to a screen, which shows it as a user would see it."""

import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyte

ROWS, COLUMNS = 100, 200  # nothing scrolls away, and no path is broken over two lines
_PATIENCE_SECONDS = 120.0


class Played(NamedTuple):
    """A command that has ended."""

    code: int
    screen: str
    """Lines without trailing blanks, each with its end."""
    stream: str
    """All that was written, control characters and what was drawn over included."""


def play(words: Sequence[str], cwd: str, *, when: Callable[[str], bool] | None = None) -> Played:
    """Run a command in a terminal of its own until it ends.

    Args:
        words: The command.
        cwd: Where.
        when: Asked about each new screen; at its first True the process gets SIGTERM.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    drawing, stream = pyte.ByteStream(screen), b""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (ROWS, COLUMNS))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        words, cwd=cwd, env=env | {"TERM": "xterm-256color"}, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        while written := _read(master, process):
            stream += written
            drawing.feed(written)
            if when is not None and when(_text(screen)):
                process.send_signal(signal.SIGTERM)
                when = None
        os.close(master)
    return Played(process.returncode, _text(screen), stream.decode(errors="replace"))


def _read(master: int, process: subprocess.Popen) -> bytes:
    """What was written since; nothing at the end."""
    if not select.select([master], [], [], _PATIENCE_SECONDS)[0]:
        os.killpg(process.pid, signal.SIGKILL)  # with all that it started
        raise TimeoutError(f"{process.args}: nothing was written for {_PATIENCE_SECONDS:.0f} s")
    try:
        return os.read(master, 65536)
    except OSError:  # Linux: the last process that had it open has ended
        return b""


def _text(screen: pyte.Screen) -> str:
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in lines)
