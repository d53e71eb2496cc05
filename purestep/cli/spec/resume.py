"""The command `purestep spec resume`: go on with a run, by the spec that is in its directory."""

import os

import click

from ..exits import ExitCode, Refusal
from .run import PROGRESS


@click.command(
    "resume",
    short_help="Go on with a run.",
    help="""Go on with a run from its newest checkpoint, bitwise as if it had never stopped.

    \b
      purestep spec resume runs/my-model

    Everything is read from the directory of the run but trust, which is given anew.""",
)
@click.argument("run_dir", metavar="RUN_DIR")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option("--progress", type=click.Choice(PROGRESS), default="auto", help="A live line, plain lines, or nothing on stderr.")
def command(run_dir: str, trust: tuple[str, ...], progress: str) -> int:
    """Read the spec of the run, and train on."""
    from ...spec.reading import read_spec
    from ...spec.trust import check_names
    from .execution import Request, execute
    from .granting import find_modules_here, granted

    path = os.path.join(run_dir, "spec.json")
    if not os.path.isfile(path):
        raise Refusal(f"{run_dir} is no directory of a run: there is no spec.json in it", ExitCode.PATH)
    spec = read_spec(path)
    grants = granted(trust)
    check_names(spec, grants)
    checkpoints = os.path.join(run_dir, "checkpoints")
    if not os.path.isdir(checkpoints):
        raise Refusal(f"{run_dir} holds no checkpoints to go on from", ExitCode.PATH)
    find_modules_here(grants)
    return execute(Request(spec, os.path.abspath(run_dir), grants, progress, resume=True))
