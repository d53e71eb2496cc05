"""How a command ends: the exit codes, which failure has which, and how it is told. The only place that knows them."""

import enum
import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from ..errors import CheckpointError, DataError, DistributedError, PurestepError, RecompileError, SpecError, StallError, TrustError
from .out_of_memory import ADVICE, is_out_of_memory

_log = logging.getLogger("purestep.cli")


class ExitCode(enum.IntEnum):
    """What the exit status of `purestep` means."""

    DONE = 0
    BUG = 1
    """A defect of ours, or an exception in the user's code."""
    USAGE = 2
    """The command line is wrong."""
    SPEC = 3
    """The spec is invalid, or a strict report found a warning."""
    PATH = 4
    """Input or output: missing, unreadable, corrupt, or would be overwritten."""
    TRUST = 5
    """Code that was not trusted."""
    ENVIRONMENT = 6
    """No CUDA, a missing extra, a torch that is too old."""
    GUARD = 7
    """Training was stopped by its own guard."""
    RANKS = 8
    """Another rank of the run died, failed, or does something else; the message names it."""
    INTERRUPTED = 75
    """Interrupted with a good checkpoint: the same command can continue (EX_TEMPFAIL of sysexits.h)."""
    SIGINT = 130
    """Interrupted from the keyboard with nothing saved."""
    SIGTERM = 143
    """Terminated with nothing saved."""


_BY_CLASS: tuple[tuple[type[Exception], ExitCode], ...] = (
    (CheckpointError, ExitCode.PATH),
    (DataError, ExitCode.PATH),
    (SpecError, ExitCode.SPEC),
    (TrustError, ExitCode.TRUST),
    (StallError, ExitCode.GUARD),
    (DistributedError, ExitCode.RANKS),
    (RecompileError, ExitCode.GUARD),
)


class Refusal(Exception):
    """A command that cannot or will not do what was asked, for a reason that the user can act on.

    Args:
        message: What is wrong, with the values.
        code: What the process exits with.
        advice: What to do about it, a line each; commands can be copied as they are.
    """

    def __init__(self, message: str, code: ExitCode, advice: Sequence[str] = ()):
        super().__init__(message)
        self.message, self.code, self.advice = message, code, tuple(advice)


def tell(*lines: str) -> None:
    """Write lines to stderr, where everything goes that is not the result; a run that keeps its messages keeps them."""
    for line in lines:
        click.echo(line, err=True)
        _log.info("%s", line)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of a failure that was not turned into a `Refusal`."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.SIGINT
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC):
        return ExitCode.PATH
    return ExitCode.BUG


def end(error: BaseException, run_dir: str | None = None, rank: int = 0) -> int:
    """Tell the user about a failure; a traceback only where somebody has to look into code.

    Args:
        error: What ended the command.
        run_dir: Where the traceback goes, in `crash-rank<N>.txt`; stderr if there is none.
        rank: Of the process.

    Returns:
        The exit code.
    """
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, Refusal):
        tell(f"error: {error.message}", *(f"  {line}" for line in error.advice))
        return int(error.code)
    code = exit_code_of(error)
    if code is ExitCode.SIGINT:
        tell("interrupted")
    elif code is not ExitCode.BUG or isinstance(error, PurestepError):
        tell(f"error: {_words(error)}", *_notes(error))
    else:
        _report_defect(error, run_dir, rank)
    return int(code)


def _report_defect(error: BaseException, run_dir: str | None, rank: int) -> None:
    if run_dir is None:
        traceback.print_exception(error, file=sys.stderr)
        return
    path = os.path.join(run_dir, f"crash-rank{rank}.txt")
    with open(path, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    tell(f"error: {type(error).__name__}: {error}", f"  the traceback is in {path}", *_notes(error))


def _words(error: BaseException) -> str:
    """What an error says; the system's own words without their number, and from where a relative path was looked for."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    where = "" if os.path.isabs(path) else f" (from {os.getcwd()})"
    return f"{path}: {error.strerror[:1].lower()}{error.strerror[1:]}{where}"


def _notes(error: BaseException) -> list[str]:
    notes = (*getattr(error, "__notes__", ()), *(ADVICE if is_out_of_memory(error) else ()))
    return [f"  {note}" for note in notes]
