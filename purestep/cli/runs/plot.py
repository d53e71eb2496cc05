"""The command `purestep runs plot`: the curves of several runs in one picture."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import click

from ..exits import ExitCode, Refusal, tell
from ..new_files import check_new
from .finding import find_runs, records_of

_USUAL = ("loss/total", "validation/loss/total")


@click.command(
    "plot",
    short_help="Draw the curves of runs.",
    help="""Draw the curves of runs into one PNG: a panel for each metric, a curve for each run.

    \b
      purestep runs plot runs/one runs/two --out both.png
      purestep runs plot runs --out all.png --metric validation/forces/mae_ev_per_angstrom --against epoch""",
)
@click.argument("paths", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", required=True, metavar="FILE", help="The PNG; must not exist.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="What to draw; the loss, trained and validated, otherwise.")
@click.option("--against", type=click.Choice(["batch", "step", "epoch"]), default="batch", show_default=True, help="Horizontal axis.")
def command(paths: tuple[str, ...], out: str, metrics: tuple[str, ...], against: Literal["batch", "step", "epoch"]) -> None:
    """Read the logs and draw."""
    from ...reporting.comparison import draw_runs

    check_new(out)
    records = {run: records_of(run) for run in find_runs(paths)}
    logged = {run: lines for run, lines in records.items() if lines}
    for run in records.keys() - logged.keys():
        tell(f"{run}: nothing is logged yet; left out")
    if not logged:
        raise Refusal(f"there is no run with a log in {', '.join(paths)}", ExitCode.PATH)
    known = _finite_metrics([line for lines in logged.values() for line in lines])
    chosen = metrics or tuple(name for name in _USUAL if name in known)
    if missing := [name for name in chosen if name not in known] or ([] if chosen else ["loss/total"]):
        raise Refusal(f"no run has a finite value of {missing[0]!r}", ExitCode.PATH, [f"there are: {', '.join(sorted(known))}"])
    click.echo(draw_runs(_named(logged), chosen, out, against=against))


def _finite_metrics(lines: Sequence[dict[str, Any]]) -> set[str]:
    return {name for line in lines for name, value in line.items() if "/" in name and value is not None}


def _named(logged: dict[str, Any]) -> dict[str, Any]:
    """By the shortest names that tell the runs apart: without what their paths have in common."""
    if len(logged) == 1:
        return {os.path.basename(os.path.abspath(run)): lines for run, lines in logged.items()}
    shared = os.path.commonpath([os.path.abspath(run) for run in logged])
    return {os.path.relpath(os.path.abspath(run), shared): lines for run, lines in logged.items()}
