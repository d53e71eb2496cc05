"""The command `purestep runs list`: a line for each run."""

import datetime
import os
from typing import Any

import click

from .. import documents
from ..exits import tell
from .finding import LOG, find_runs, records_of, status_of

_VALIDATED = "validation/loss/total"
_TITLES = ("run", "status", "updates", "epochs", "loss", "validated", "best", "written")


@click.command(
    "list",
    short_help="List runs.",
    help="""List runs: how they ended, how far they came, their loss.

    \b
      purestep runs list                all under runs/
      purestep runs list runs/sweep runs/my-model --json

    `running` is what a run says that was never told to stop: it runs, or its process was killed.""",
)
@click.argument("paths", nargs=-1, metavar="[DIR]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Look into each."""
    rows = [facts_of(run) for run in find_runs(paths or ("runs",))]
    if as_json:
        documents.emit({"schema": "purestep.runs-list/1", "runs": rows})
        return
    if not rows:
        tell(f"no run in {', '.join(paths) or 'runs'}")
        return
    table = [_TITLES, *(_cells(row) for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(_TITLES))]
    for cells in table:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())


def facts_of(run_dir: str) -> dict[str, Any]:
    """What is known of a run."""
    records, status = records_of(run_dir), status_of(run_dir)
    losses = [record["loss/total"] for record in records if record.get("loss/total") is not None]
    validated = [record[_VALIDATED] for record in records if record.get(_VALIDATED) is not None]
    log = os.path.join(run_dir, LOG)
    written = datetime.datetime.fromtimestamp(os.path.getmtime(log), datetime.UTC) if os.path.isfile(log) else None
    return {
        "run_dir": run_dir,
        "status": status.get("status"),
        "exit_code": status.get("exit_code"),
        "reason": status.get("reason"),
        "batch": max((record["batch"] for record in records), default=0),
        "step": max((record["step"] for record in records), default=0),
        "epoch": max((record["epoch"] for record in records), default=0),
        "loss": losses[-1] if losses else None,
        "validated": validated[-1] if validated else None,
        "best": min(validated, default=None),
        "written": written.isoformat(timespec="seconds") if written is not None else None,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    code = row["exit_code"]
    status = f"{row['status'] or 'unknown'}{f' ({code})' if code else ''}"
    losses = ("-" if row[name] is None else f"{row[name]:.5g}" for name in ("loss", "validated", "best"))
    return (row["run_dir"], status, f"{row['step']:,}", str(row["epoch"]), *losses, row["written"] or "-")
