"""The command `purestep spec run`: a new run, in a directory of its own."""

import os

import click

from .. import documents
from ..exits import ExitCode, Refusal
from ..run_directory import claim, command_line, next_free

PROGRESS = ("auto", "rich", "plain", "none")


@click.command(
    "run",
    short_help="Run a spec.",
    help="""Run a spec, in a directory that holds nothing yet.

    \b
      purestep spec run train.json
      purestep spec run train.json --set strategy.num_steps=100 --run-dir runs/short
      purestep spec run train.json --trust my.package    the spec names a model of my.package

    SIGTERM and SIGINT save a checkpoint and end the run with exit code 75; `purestep spec resume` goes on.""",
)
@click.argument("path", metavar="SPEC")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's; recorded.")
@click.option("--run-dir", metavar="D", help="In the place of the spec's output.run_dir.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option("--progress", type=click.Choice(PROGRESS), default="auto", help="A live line, plain lines, or nothing on stderr.")
def command(path: str, overrides: tuple[str, ...], run_dir: str | None, trust: tuple[str, ...], progress: str) -> int:
    """Check, claim the directory, train."""
    from ...spec.building import absolute, missing_paths
    from ...spec.reading import document_of, read_spec
    from ...spec.trust import check_names
    from .execution import Request, describe_run, execute
    from .granting import find_modules_here, granted

    spec = absolute(read_spec(path, overrides), os.path.dirname(path))
    if run_dir is not None:
        spec = spec.model_copy(update={"output": spec.output.model_copy(update={"run_dir": os.path.abspath(run_dir)})})
    grants = granted(trust)
    check_names(spec, grants)  # before any path is looked at
    if missing := missing_paths(spec):
        raise Refusal("\n".join(f"PS304 {pointer}: there is no directory {store}" for pointer, store in missing), ExitCode.PATH)
    find_modules_here(grants)
    directory = _claim(path, spec.output.run_dir)
    documents.write(os.path.join(directory, "spec.json"), document_of(spec))
    documents.write(os.path.join(directory, "run.json"), describe_run(spec, path, overrides))
    return execute(Request(spec, directory, grants, progress))


def _claim(path: str, run_dir: str) -> str:
    try:
        return claim(run_dir)
    except Refusal as refusal:
        advice = [
            command_line("purestep", "spec", "resume", run_dir),
            command_line("purestep", "spec", "run", path, "--run-dir", next_free(run_dir)),
        ]
        raise Refusal(refusal.message, refusal.code, advice) from refusal
