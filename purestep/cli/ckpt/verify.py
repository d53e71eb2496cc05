"""The command `purestep ckpt verify`: every byte of every checkpoint against its checksum."""

from typing import Any

import click

from .. import documents
from ..exits import ExitCode, tell
from .places import checkpoints_of


@click.command(
    "verify",
    short_help="Read every byte and compare checksums.",
    help="""Read every byte of a checkpoint, or of all checkpoints of a run, and compare all checksums.

    \b
      purestep ckpt verify runs/my-model    exit code 4 if one is damaged""",
)
@click.argument("path", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, as_json: bool) -> int:
    """Verify each; a line for each."""
    from ...checkpoint.store import candidates, is_checkpoint, no_checkpoint

    root = checkpoints_of(path)
    paths = [root] if is_checkpoint(root) else [found for _, found in candidates(root)]
    if not paths:
        raise no_checkpoint(root, [])
    results = [_verified(found) for found in paths]
    damaged = [result for result in results if not result["intact"]]
    if as_json:
        documents.emit({"schema": "purestep.ckpt-verify/1", "root": root, "checkpoints": results})
    else:
        for result in results:
            click.echo(f"{result['path']}: {'intact, ' + str(result['leaves']) + ' leaves' if result['intact'] else 'DAMAGED'}")
    for result in damaged:
        tell(f"error: {result['reason']}")
    return int(ExitCode.PATH if damaged else ExitCode.DONE)


def _verified(path: str) -> dict[str, Any]:
    from ...checkpoint import verify
    from ...checkpoint.store import check_label, label_from_name, open_checkpoint
    from ...errors import CheckpointError

    try:
        manifest = verify(path)
        label = label_from_name(path.rpartition("/")[2])
        if label is not None:
            check_label(open_checkpoint(path), label)
    except CheckpointError as error:
        return {"path": path, "intact": False, "reason": str(error)}
    return {"path": path, "intact": True, "label": manifest.label, "leaves": len(manifest.leaves)}
