"""The command `purestep ckpt show`: what one checkpoint holds."""

import json
import textwrap
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from .places import STEP, choose, metrics_of

if TYPE_CHECKING:
    from ...checkpoint import Checkpoint

_WIDTH = 110


@click.command(
    "show",
    short_help="Say what a checkpoint holds.",
    help="""Say what a checkpoint holds: counters, metrics, who wrote it, and every part of the state with its size.

    \b
      purestep ckpt show runs/my-model                      the newest
      purestep ckpt show runs/my-model --step 120           the one with this label (batches)
      purestep ckpt show runs/my-model --step best:validation/loss/total --depth 9""",
)
@click.argument("path", metavar="DIR")
@STEP
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="How far the state is opened.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with every leaf.")
def command(path: str, step: str, depth: int, as_json: bool) -> None:
    """Open it and print."""
    checkpoint = choose(path, step)
    if as_json:
        documents.emit({"schema": "purestep.ckpt-show/1", **_document(checkpoint)})
    else:
        click.echo("\n".join(_lines(checkpoint, depth)))


def _document(checkpoint: "Checkpoint") -> dict[str, Any]:
    from .outline import bytes_of

    manifest = checkpoint.manifest
    leaves = [
        {"path": leaf.path, "dtype": leaf.dtype, "shape": leaf.shape, "bytes": bytes_of(leaf)}
        if leaf.pieces
        else {"path": leaf.path, "kind": leaf.kind, "value": leaf.value}
        for leaf in manifest.leaves
    ]
    stated = manifest.model_dump(mode="json", exclude={"leaves", "metrics"})
    return {"path": checkpoint.path, **stated, "metrics": metrics_of(manifest), "leaves": leaves}


def _lines(checkpoint: "Checkpoint", depth: int) -> list[str]:
    from ...checkpoint.store import total_bytes
    from ...core.tree import format_bytes
    from .outline import outline

    manifest = checkpoint.manifest
    writer = " · ".join(f"{name} {value}" for name, value in manifest.writer.items())
    finite = {None: "not looked at", True: "yes", False: "NO"}[manifest.finite]
    facts = {
        "counters": " · ".join(f"{name.removesuffix('_count')} {value:,}" for name, value in manifest.counters.items()),
        "written": f"{manifest.created}, {manifest.reason}",
        "writer": writer,
        "finite": finite,
        "tied": ", ".join(f"{name} = {holder}" for name, holder in manifest.aliases),
        "extra": json.dumps(manifest.extra, ensure_ascii=False) if manifest.extra else "",
        "files": ", ".join(f"{file.path} ({format_bytes(file.bytes)})" for file in manifest.files),
    }
    head = [checkpoint.path, *(_wrapped(name, text) for name, text in facts.items() if text)]
    title = f"{manifest.state_schema.name.rpartition('.')[2]}  {len(manifest.leaves)} leaves, {format_bytes(total_bytes(manifest))}"
    metrics = metrics_of(manifest)
    width = max(map(len, metrics), default=0)
    measured = ["  metrics", *(f"    {name:<{width}}  {value:.6g}" for name, value in sorted(metrics.items()))] if metrics else []
    return [*head, *measured, "", title, *outline(manifest.leaves, depth)]


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(f"  {name:<10}{text}", _WIDTH, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
