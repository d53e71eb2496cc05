"""Starting the processes of the demo, and passing on to them what the user's signals ask for."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def run_worker(run_dir: str, part: str, progress_mode: str) -> int:
    """Run one part in a process of its own.

    Returns:
        Its exit code; negative if a signal ended it.
    """
    command = [sys.executable, "-P", "-m", f"{__package__}.worker", run_dir, part, progress_mode]
    # a group of its own: a Ctrl-C in the terminal reaches us alone, and the worker once, through us
    child = subprocess.Popen(command, env=worker_environment(), stdin=subprocess.DEVNULL, stdout=2, process_group=0)
    with _passing_on(child, signal.SIGINT, signal.SIGTERM):
        return child.wait()


def worker_environment() -> dict[str, str]:
    """Our environment, this very package first on the path, and cuBLAS told to be repeatable."""
    home = str(Path(__file__).parents[len(__package__.split("."))])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen, *signals: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, lambda number, frame: child.send_signal(number)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
