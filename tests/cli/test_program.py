import resource
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from purestep import __version__
from purestep.cli import COMMANDS, main
from purestep.cli.exits import ExitCode, Refusal
from purestep.cli.program import Program
from purestep.errors import (
    CheckpointCorruptError,
    DataError,
    DistributedError,
    NoCheckpointError,
    RecompileError,
    StallError,
    TransformError,
)

INVOCATIONS = [[], *([name] for name in COMMANDS)]


def program_that_raises(error):
    """A program with one command, which fails."""

    @click.command()
    def fail():
        raise error

    program = Program({})
    program.add_command(fail, "fail")
    return program


def outcome_of(error):
    return CliRunner().invoke(program_that_raises(error), ["fail"])


@pytest.mark.parametrize("words", INVOCATIONS, ids=" ".join)
def test_both_forms_of_help_say_the_same_in_at_most_forty_lines(words):
    long, short = (CliRunner().invoke(main, [*words, flag]) for flag in ("--help", "-h"))
    assert (long.exit_code, long.stdout) == (0, short.stdout)
    assert len(long.stdout.splitlines()) <= 40


def test_help_takes_less_than_half_a_second_of_a_processor():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "purestep", "demo", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # time of the processor rather than of the clock, so that a busy machine is no failure
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_version_is_that_of_the_package():
    assert CliRunner().invoke(main, ["--version"]).stdout == f"purestep, version {__version__}\n"


@pytest.mark.parametrize("words", [["demmo"], ["demo", "--no-such-option"], ["demo", "--seed", "x"]], ids=" ".join)
def test_a_wrong_command_line_exits_with_2_and_leaves_stdout_empty(words):
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoCheckpointError("x"), 4),
        (CheckpointCorruptError("x"), 4),
        (DataError("x"), 4),
        (FileNotFoundError(2, "No such file", "x"), 4),
        (PermissionError(13, "Permission denied", "x"), 4),
        (OSError(28, "No space left on device"), 4),
        (StallError("x"), 7),
        (DistributedError("x"), 8),
        (RecompileError("x"), 7),
        (TransformError("x"), 1),
        (Refusal("x", ExitCode.ENVIRONMENT), 6),
        (Refusal("x", ExitCode.TRUST), 5),
        (click.UsageError("x"), 2),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_failure_has_its_exit_code(error, code):
    result = outcome_of(error)
    assert (result.exit_code, result.stdout) == (code, "")


def test_a_refusal_says_what_is_wrong_and_what_to_do():
    result = outcome_of(Refusal("runs/a is not empty", ExitCode.PATH, ["purestep demo --run-dir runs/b"]))
    assert result.stderr == "error: runs/a is not empty\n  purestep demo --run-dir runs/b\n"


def test_an_error_of_the_user_has_no_traceback():
    assert outcome_of(DataError("data/train.zarr: no such store")).stderr == "error: data/train.zarr: no such store\n"


def test_a_file_that_is_not_there_is_named_in_words_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gone = outcome_of(FileNotFoundError(2, "No such file or directory", "train.json"))
    assert gone.stderr == f"error: train.json: no such file or directory (from {tmp_path})\n"
    assert outcome_of(PermissionError(13, "Permission denied", "/etc/x")).stderr == "error: /etc/x: permission denied\n"
    assert outcome_of(OSError(28, "No space left on device")).stderr == "error: [Errno 28] No space left on device\n"


def test_a_defect_has_a_traceback(capfd):
    with pytest.raises(SystemExit, match="1"):
        program_that_raises(ZeroDivisionError("oops"))(["fail"])
    assert "Traceback" in capfd.readouterr().err


def test_the_number_that_a_command_returns_is_the_exit_code():
    program = Program({})
    program.add_command(click.Command("seventy-five", callback=lambda: int(ExitCode.INTERRUPTED)))
    assert CliRunner().invoke(program, ["seventy-five"]).exit_code == 75
