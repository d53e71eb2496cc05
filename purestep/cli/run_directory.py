"""Directories of runs: a new one for each run, never one that something is in."""

import os
import re
import shlex
import shutil

from ..spec.failed_starts import is_failed_start
from .exits import ExitCode, Refusal, tell


def claim(path: str) -> str:
    """Make a directory for a run; it may exist if it is empty, or holds a run that failed before it began, which is replaced.

    Returns:
        The absolute path.

    Raises:
        Refusal: If something is there.
    """
    whole = os.path.abspath(path)
    if is_failed_start(whole):
        tell(f"{path} holds a run that failed before its first report; it is replaced")
        shutil.rmtree(whole)
    if os.path.isdir(whole) and os.listdir(whole):
        raise Refusal(f"{path} is not empty, and a run is never written over another", ExitCode.PATH)
    if os.path.lexists(whole) and not os.path.isdir(whole):
        raise Refusal(f"{path} exists and is not a directory", ExitCode.PATH)
    os.makedirs(whole, exist_ok=True)
    return whole


def claim_numbered(parent: str, name: str) -> str:
    """Make the first of `parent/name-001`, `-002`, ... that does not exist; the absolute path."""
    whole = os.path.abspath(parent)
    os.makedirs(whole, exist_ok=True)
    number = 1
    while True:
        path = os.path.join(whole, f"{name}-{number:03d}")
        try:
            os.mkdir(path)  # fails if another process was quicker
            return path
        except FileExistsError:
            number += 1


def next_free(path: str) -> str:
    """A path like this one that does not exist: with a number at its end, or a larger one.

    Example:
        >>> next_free("runs/there-is-no-such-run-007")
        'runs/there-is-no-such-run-008'
    """
    stem, number = re.fullmatch(r"(.*?)(?:-(\d{3}))?", path.rstrip(os.sep), flags=re.DOTALL).groups()  # type: ignore[union-attr]
    count = int(number or 1) + 1
    while os.path.lexists(candidate := f"{stem}-{count:03d}"):
        count += 1
    return candidate


def command_line(*words: str) -> str:
    """Words as a line that a shell takes apart again."""
    return shlex.join(words)
