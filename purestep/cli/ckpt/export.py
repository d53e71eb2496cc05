"""The command `purestep ckpt export`: weights as plain safetensors, for others."""

import os

import click

from .. import documents
from ..exits import tell
from .places import STEP, choose, validated_weights

_DTYPES = ("float64", "float32", "bfloat16", "float16")


@click.command(
    "export",
    short_help="Write the weights for others.",
    help="""Write the weights of a checkpoint as model.safetensors into a new directory; any program that reads safetensors reads them.

    \b
      purestep ckpt export runs/my-model --to exported                  the newest weights, averaged if those were validated
      purestep ckpt export runs/my-model --to exported --weights raw    as the last update left them
      purestep ckpt export runs/my-model --to exported --step best:validation/loss/total --dtype bfloat16""",
)
@click.argument("path", metavar="DIR")
@click.option("--to", required=True, metavar="NEW_DIR", help="Must not exist, or be empty.")
@click.option("--weights", metavar="NAME", help="raw, or the hook that keeps an average, such as ema. Default: those that were validated.")
@STEP
@click.option("--dtype", type=click.Choice(_DTYPES), help="Convert floating-point weights to this.")
@click.option("--tied-once", is_flag=True, help="Store tied weights once, under one name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, to: str, weights: str | None, step: str, dtype: str | None, tied_once: bool, as_json: bool) -> None:
    """Export, and print the directory."""
    import torch

    from ...checkpoint import export

    checkpoint = choose(path, step)
    manifest = checkpoint.manifest
    validated = validated_weights(checkpoint) if weights is None else None
    chosen = weights or validated or "raw"
    why = "" if validated is None else ", those that were validated"
    kind = None if dtype is None else getattr(torch, dtype)
    directory = export(checkpoint.path, to, weights=chosen, dtype=kind, tied="once" if tied_once else "copied")
    if as_json:
        files = {name: os.path.getsize(os.path.join(directory, name)) for name in sorted(os.listdir(directory))}
        facts = {"path": directory, "label": manifest.label, "weights": chosen, "dtype": dtype, "files": files}
        documents.emit({"schema": "purestep.ckpt-export/1", **facts})
        return
    tell(f"wrote the {chosen} weights of step {manifest.counters.get('step_count', manifest.label):,}{why}")
    click.echo(directory)
