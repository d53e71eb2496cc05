"""The command `purestep train init`: a spec to begin with. It asks stores only for their parts, and writes nothing over anything."""

from typing import Any

import click

from ..spec.templates import PRESETS, template
from .new_spec import options, template_arguments, write_spec


@click.command(
    "init",
    short_help="Write a spec to begin with.",
    help="""Write a spec to begin with: data, loss, optimizer, schedule, output. The data need not be there yet; of a store that
    is, and has parts, the spec trains on train and validates on validation.

    \b
      purestep train init --dataset data/train.zarr --output-dir runs/one --out train.json
      purestep train init --dataset a.zarr --dataset b.zarr --output-dir runs/two --model my.models.Net --out two.json""",
)
@options(
    click.option("--model", metavar="CLS_PATH", help="Dotted path of the model, such as purestep.models.PaiNN."),
    click.option(
        "--preset",
        type=click.Choice(PRESETS),
        default="adamw",
        show_default=True,
        help="Optimizer and schedule; wsd: constant for most of the run, then a fall, so that it can be made longer.",
    ),
    learning_rate=1e-3,
)
def command(out: str, schema: bool, **choices: Any) -> None:
    """Write the spec."""
    arguments = template_arguments(out=out, **choices)
    if arguments["num_epochs"] is not None and arguments["preset"] == "adamw-wsd":
        raise click.UsageError("--preset adamw-wsd needs --num-steps, since its learning rate falls at the end of them")
    write_spec(out, template(**arguments), schema=schema)
