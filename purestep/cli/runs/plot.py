"""The command `purestep runs plot`: the curves of several runs, in the terminal, as a picture, a page or numbers."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click

from .. import documents
from ..exits import ExitCode, Refusal, tell
from ..new_files import check_new
from .finding import find_runs, records_of

Against = Literal["batch", "step", "epoch"]
_USUAL = ("loss/total", "validation/loss/total")
_ENDINGS = (".png", ".html")
_PLURAL = {"batch": "batches", "step": "steps", "epoch": "epochs"}
_WIDTH = 40  # columns of a curve in the terminal


@click.command(
    "plot",
    short_help="Draw the curves of runs.",
    help="""Draw the curves of runs: a line of text for each, or a panel for each metric with all runs over one another.

    \b
      purestep runs plot runs/one runs/two                  in the terminal, each in its own range
      purestep runs plot runs/one runs/two --out both.png
      purestep runs plot runs --out all.html                a page, with a table of where each run stands
      purestep runs plot runs --json                        the curves as numbers
      purestep runs plot runs --out all.png --metric validation/forces/mae_ev_per_angstrom --against epoch""",
)
@click.argument("paths", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", metavar="FILE", help="FILE.png or FILE.html; must not exist.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="What to draw; the loss, trained and validated, otherwise.")
@click.option("--against", type=click.Choice(["batch", "step", "epoch"]), default="batch", show_default=True, help="Horizontal axis.")
@click.option("--json", "as_json", is_flag=True, help="Print the curves as one JSON document.")
def command(paths: tuple[str, ...], out: str | None, metrics: tuple[str, ...], against: Against, as_json: bool) -> None:
    """Read the logs and draw."""
    if out is not None:
        if not out.endswith(_ENDINGS):
            raise click.UsageError(f"--out ends in {' or '.join(_ENDINGS)}; got {out}")
        check_new(out)
    runs = _logged(paths)
    chosen = _metrics(runs, metrics)
    named = dict(zip(_names(list(runs)), runs.values(), strict=True))
    whole = _draw(named, chosen, out, against) if out is not None else None
    if as_json:
        documents.emit(_document(runs, chosen, against, whole))
    else:
        click.echo(_text(named, chosen, against) if whole is None else whole)


def _logged(paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The records of the runs that have some, by directory."""
    records = {run: records_of(run) for run in find_runs(paths)}
    logged = {run: lines for run, lines in records.items() if lines}
    for run in records.keys() - logged.keys():
        tell(f"{run}: nothing is logged yet; left out")
    if not logged:
        raise Refusal(f"there is no run with a log in {', '.join(paths)}", ExitCode.PATH)
    return logged


def _metrics(runs: Mapping[str, Sequence[dict[str, Any]]], asked: Sequence[str]) -> Sequence[str]:
    known = {name for lines in runs.values() for line in lines for name, value in line.items() if "/" in name and value is not None}
    chosen = asked or tuple(name for name in _USUAL if name in known)
    if missing := [name for name in chosen if name not in known] or ([] if chosen else ["loss/total"]):
        raise Refusal(f"no run has a finite value of {missing[0]!r}", ExitCode.PATH, [f"there are: {', '.join(sorted(known))}"])
    return chosen


def _names(runs: Sequence[str]) -> list[str]:
    """The shortest names that tell the runs apart: without what their paths have in common."""
    whole = [os.path.abspath(run) for run in runs]
    if len(whole) == 1:
        return [os.path.basename(whole[0])]
    shared = os.path.commonpath(whole)
    return [os.path.relpath(run, shared) for run in whole]


def _draw(named: Mapping[str, Any], metrics: Sequence[str], out: str, against: Against) -> str:
    from ...reporting.comparison import draw_runs
    from ...reporting.comparison_page import write_comparison

    if out.endswith(".html"):
        return write_comparison(out, named, metrics, against=against, title=", ".join(named))
    return draw_runs(named, metrics, out, against=against)


def _text(named: Mapping[str, Any], metrics: Sequence[str], against: Against) -> str:
    """A line for each curve, drawn in its own range."""
    from ...reporting.comparison import curve
    from ...reporting.view import sparkline

    width = max(map(len, (*named, *metrics))) + 4
    lines = []
    for metric in metrics:
        lines.append(f"{metric:<{width}}{'':<{_WIDTH}}{'first':>12}{'last':>12}{'least':>12}  {_PLURAL[against]}")
        for name, records in named.items():
            places, values = curve(records, metric, against)
            if len(values):
                numbers = "".join(f"{value:>12.4g}" for value in (values[0], values[-1], values.min()))
                lines.append(
                    f"  {name:<{width - 2}}{sparkline(values.tolist(), _WIDTH):<{_WIDTH}}{numbers}  {places[0]:.0f} to {places[-1]:.0f}"
                )
    return "\n".join(lines)


def _document(runs: Mapping[str, Any], metrics: Sequence[str], against: Against, out: str | None) -> dict[str, Any]:
    from ...reporting.comparison import curve

    stated = []
    for run_dir, lines in runs.items():
        curves = {metric: curve(lines, metric, against) for metric in metrics}
        stated.append({"run_dir": run_dir, "curves": {name: {against: x.tolist(), "value": y.tolist()} for name, (x, y) in curves.items()}})
    return {"schema": "purestep.runs-plot/1", "against": against, "metrics": list(metrics), "runs": stated, "out": out}
