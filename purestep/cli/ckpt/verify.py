"""The command `purestep ckpt verify`: every byte of every checkpoint against its checksum, and the training after one against the log."""

import os
from typing import Any

import click

from .. import documents
from ..exits import ExitCode, Refusal, tell
from .places import STEP, checkpoints_of, choose


@click.command(
    "verify",
    short_help="Read every byte and compare checksums.",
    help="""Read every byte of a checkpoint, or of all checkpoints of a run, and compare all checksums.

    \b
      purestep ckpt verify runs/my-model    exit code 4 if one is damaged
      purestep ckpt verify runs/my-model --step 200 --replay 10    go on from it for 10 batches, writing nothing; exit code 7 if a
                                            metric is not, bit for bit, that of the log""",
)
@click.argument("path", metavar="DIR")
@click.option("--replay", "count", type=click.IntRange(min=1), metavar="N", help="Train N batches again, and compare with the log.")
@STEP
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name, for --replay.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, count: int | None, step: str, trust: tuple[str, ...], as_json: bool) -> int:
    """Verify each; a line for each."""
    if count is not None:
        return _replayed(path, step, count, trust, as_json)
    if step != "latest" or trust:
        raise click.UsageError("--step and --trust go with --replay; without it every checkpoint is verified")
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


def _replayed(path: str, step: str, count: int, trust: tuple[str, ...], as_json: bool) -> int:
    from .replaying import replay

    checkpoint = os.path.abspath(choose(path, step).path)
    run_dir = os.path.dirname(os.path.dirname(checkpoint))
    if not os.path.isfile(os.path.join(run_dir, "spec.json")) or not os.path.isfile(os.path.join(run_dir, "metrics.jsonl")):
        raise Refusal(f"{checkpoint} is in no run of a spec: there is no spec.json, or no metrics.jsonl, in {run_dir}", ExitCode.PATH)
    result = replay(run_dir, checkpoint, count, trust)
    if as_json:
        documents.emit({"schema": "purestep.ckpt-replay/1", **result._asdict()})
    else:
        click.echo(result.text())
    return int(ExitCode.GUARD if result.differing else ExitCode.DONE)


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
