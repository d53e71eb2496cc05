"""The command `purestep ckpt list`: the checkpoints of a run, and what is damaged."""

import os
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..exits import tell
from .places import checkpoints_of, metrics_of

if TYPE_CHECKING:
    from ...checkpoint import Checkpoint

_SHOWN = ("validation/loss/total", "loss/total")


@click.command(
    "list",
    short_help="List checkpoints.",
    help="""List checkpoints, oldest first, from their manifests alone; a damaged one is named on stderr.

    \b
      purestep ckpt list runs/my-model
      purestep ckpt list runs/my-model/checkpoints --json""",
)
@click.argument("path", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, as_json: bool) -> None:
    """Scan, and print a line for each."""
    from ...checkpoint.store import Listing, is_checkpoint, open_checkpoint, scan

    root = checkpoints_of(path)
    found = Listing([open_checkpoint(root)], []) if is_checkpoint(root) else scan(root)
    for place, error in found.rejected:
        tell(f"damaged: {place}: {error}")
    rows = [_facts(checkpoint) for checkpoint in found.checkpoints]
    if as_json:
        damaged = [{"path": place, "reason": str(error)} for place, error in found.rejected]
        documents.emit({"schema": "purestep.ckpt-list/1", "root": root, "checkpoints": rows, "damaged": damaged})
        return
    if not rows:
        tell(f"no checkpoint in {root}")
    for row in rows:
        click.echo(_line(row))


def _facts(checkpoint: "Checkpoint") -> dict[str, Any]:
    from ...checkpoint.manifest import KEEP

    manifest = checkpoint.manifest
    return {
        "path": checkpoint.path,
        "label": manifest.label,
        "counters": dict(manifest.counters),
        "created": manifest.created,
        "reason": manifest.reason,
        "bytes": sum(file.bytes for file in manifest.files),
        "finite": manifest.finite,
        "protected": os.path.exists(os.path.join(checkpoint.path, KEEP)),
        "metrics": metrics_of(manifest),
    }


def _line(row: dict[str, Any]) -> str:
    from ...core.tree import format_bytes

    counters = row["counters"]
    place = f"step {counters['step_count']:,}  epoch {counters['epoch_count']}" if "step_count" in counters else f"label {row['label']}"
    metric = next((f"{name} {row['metrics'][name]:.6g}" for name in _SHOWN if name in row["metrics"]), "")
    notes = ["protected"] * row["protected"] + ["not finite"] * (row["finite"] is False)
    name = os.path.basename(os.path.abspath(row["path"]))
    parts = [name, place, format_bytes(row["bytes"]), row["created"], row["reason"], metric, ", ".join(notes)]
    return "  ".join(filter(None, parts))
