"""The command `purestep demo`: arguments, the order of the parts, what is said at the end. It imports no torch; its processes do."""

import dataclasses
import os
import platform
import signal
import sys
import time
from importlib.metadata import version

import click

from ... import __version__
from .. import documents
from ..exits import ExitCode, Refusal, tell
from ..run_directory import claim, claim_numbered, command_line, next_free
from . import layout
from .processes import run_worker
from .recipe import FULL, SHORT, Recipe
from .report import make_document, table

PROGRESS = ("auto", "rich", "plain", "none")


@click.command(
    "demo",
    short_help="Train on molecules, be killed, resume bitwise.",
    help="""Train a small equivariant potential on energies and forces of molecules that come with the package.

    \b
      purestep demo                       a new directory runs/demo-001, ...; minutes on two cores
      purestep demo --full --json         longer and better; one JSON document on stdout
      purestep demo --run-dir D --resume  go on where a signal stopped it

    Half-way the process is killed as if the machine had gone down; a new one resumes from the last checkpoint and shows that state
    and log are bitwise those of the killed one. Errors are on molecules that training never saw.""",
)
@click.option("--run-dir", metavar="DIR", help="Where to write; must not hold anything. Default: a new directory in runs/.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Default: cuda if there is one.")
@click.option("--full", is_flag=True, help=f"Train {FULL.num_members} potentials, longer, and take their mean.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Of weights and order of the data. Default 0.")
@click.option("--resume", is_flag=True, help="Continue the demo in --run-dir, with its own settings.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@click.option("--progress", type=click.Choice(PROGRESS), default="auto", help="A live line, plain lines, or nothing on stderr.")
def command(run_dir: str | None, device: str, full: bool, seed: int, resume: bool, as_json: bool, progress: str) -> int:
    """Run the demo."""
    if resume:
        path = _reopen(run_dir)
    else:
        _check_device(device)
        path = _open(run_dir, dataclasses.replace(FULL if full else SHORT, seed=seed, device=device))
    return run(path, as_json=as_json, progress=progress)


def run(run_dir: str, *, as_json: bool = False, progress: str = "auto") -> int:
    """Run what is left to do in an opened run directory, and print the result.

    Returns:
        The exit code.
    """
    began = time.monotonic()
    code, said = _run_parts(run_dir, progress)
    status = {"schema": "purestep.status/1", "status": said, "exit_code": code}
    documents.write(os.path.join(run_dir, layout.STATUS), status)
    if code in (ExitCode.INTERRUPTED, ExitCode.SIGINT, ExitCode.SIGTERM):
        kept = f"{layout.CHECKPOINTS}/ and {layout.METRICS} in {os.path.relpath(run_dir)}"
        tell(f"saved: {kept}" if code == ExitCode.INTERRUPTED else "nothing was saved yet")
        tell(f"continue with: {command_line('purestep', 'demo', '--run-dir', os.path.relpath(run_dir), '--resume')}")
    if code != ExitCode.DONE:
        return code
    document = make_document(run_dir, seconds=time.monotonic() - began)
    documents.emit(document) if as_json else click.echo(table(document))
    if not document["resume_bitwise"]:
        tell("error: the resumed run is not bitwise the uninterrupted one; this is a defect, please report it with proof/proof.json")
        return int(ExitCode.BUG)
    return int(ExitCode.DONE)


# --- the directory ------------------------------------------------------------------------------------------------


def _open(run_dir: str | None, recipe: Recipe) -> str:
    path = claim_numbered("runs", "demo") if run_dir is None else _claim(run_dir)
    tell(f"run directory {os.path.relpath(path)}")
    write_run(path, recipe)
    return path


def write_run(run_dir: str, recipe: Recipe) -> None:
    """Write down what is going to run, and on what."""
    packages = {name: version(name) for name in ("torch", "numpy", "optree", "safetensors", "zarr")}
    documents.write(
        os.path.join(run_dir, layout.RUN),
        {
            "schema": "purestep.run/1",
            "command": ["purestep", *sys.argv[1:]],
            "recipe": dataclasses.asdict(recipe),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "purestep": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": packages,
        },
    )


def _claim(run_dir: str) -> str:
    try:
        return claim(run_dir)
    except Refusal as error:
        advice = [
            f"use another:    {command_line('purestep', 'demo', '--run-dir', next_free(run_dir))}",
            f"or remove it:   {command_line('rm', '-r', run_dir)}",
        ]
        if os.path.exists(os.path.join(run_dir, layout.RUN)) and not os.path.exists(os.path.join(run_dir, layout.RESULT)):
            advice.insert(0, f"continue it:    {command_line('purestep', 'demo', '--run-dir', run_dir, '--resume')}")
        raise Refusal(error.message, ExitCode.PATH, advice) from error


def _reopen(run_dir: str | None) -> str:
    if run_dir is None:
        raise click.UsageError("--resume needs --run-dir, the directory of the demo that was stopped")
    if not os.path.exists(os.path.join(run_dir, layout.RUN)):
        raise Refusal(f"{run_dir}: no demo was begun here; there is no {layout.RUN}", ExitCode.PATH)
    return os.path.abspath(run_dir)


def _check_device(device: str) -> None:
    """Refuse before anything is written; only who asks for CUDA waits for torch here."""
    if device == "cuda":
        from .worker import choose_device

        choose_device(device)


# --- the parts ----------------------------------------------------------------------------------------------------


def _run_parts(run_dir: str, progress: str) -> tuple[int, str]:
    """Run the two processes as far as they have not run; the exit code, and a word for it."""
    if not os.path.exists(os.path.join(run_dir, layout.KILLED, "COMMIT")):
        tell("[1/2] training, until the process is killed half-way")
        code = run_worker(run_dir, "first", progress)
        if not os.path.exists(os.path.join(run_dir, layout.KILLED, "COMMIT")):
            return _ended_early(run_dir, code)
        tell("      killed, as if the machine had gone down")
    if not os.path.exists(os.path.join(run_dir, layout.RESULT)):
        tell("[2/2] resuming from the last checkpoint in a new process; checkpoints are labelled by batches, vetoed ones among them")
        code = run_worker(run_dir, "second", progress)
        if code != ExitCode.DONE:
            return _ended_early(run_dir, code)
    return int(ExitCode.DONE), "finished"


def _ended_early(run_dir: str, code: int) -> tuple[int, str]:
    by_signal = {-signal.SIGINT: ExitCode.SIGINT, -signal.SIGTERM: ExitCode.SIGTERM}
    ended = by_signal.get(code, code)
    if ended in (ExitCode.SIGINT, ExitCode.SIGTERM) and layout.has_checkpoint(run_dir):
        ended = ExitCode.INTERRUPTED
    if code < 0 and code not in by_signal:
        tell(f"error: the process of the demo was ended by {signal.Signals(-code).name}; was there too little memory?")
        ended = ExitCode.BUG
    return int(ended), "interrupted" if ended in (ExitCode.INTERRUPTED, ExitCode.SIGINT, ExitCode.SIGTERM) else "failed"
