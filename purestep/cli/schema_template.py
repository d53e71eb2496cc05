"""The command `purestep schema template`: a whole spec to begin with, on stdout."""

from typing import Any

import click

from .documents import dump, emit
from .exits import tell
from .new_files import write_new


@click.command(
    "template",
    short_help="Print a spec to begin with.",
    help="""Print a spec to begin with: it trains the potential that comes with the package on the data that comes with it.

    \b
      purestep schema template > spec.json""",
)
@click.option("--workflow", type=click.Choice(["train", "finetune"]), default="train", show_default=True, help="What kind of run.")
@click.option("--out", metavar="FILE", help="Write to a file, which must not exist.")
def command(workflow: str, out: str | None) -> None:
    """Print, or write."""
    from ..spec.templates import finetune_template, template

    choices: dict[str, Any] = {"num_steps": 1000, "model": "purestep.models.PaiNN"}
    if workflow == "finetune":
        spec = finetune_template("runs/first", {}, ["shipped:g2"], "runs/second", trainable=["*"], learning_rate=1e-4, **choices)
    else:
        spec = template(["shipped:g2"], "runs/first", **choices)
    spec["dataset"] |= {"split": "train", "validation_split": "validation", "cutoff": 3.5}
    spec["strategy"]["model_specs"]["main"] |= {"hidden_size": 32, "num_layers": 2, "cutoff": 3.5}
    if out is None:
        emit(spec)
        return
    write_new(out, dump(spec) + "\n")
    tell(f"wrote {out}")
