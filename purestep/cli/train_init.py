"""The command `purestep train init`: a spec to begin with. It asks stores only for their parts, and writes nothing over anything."""

import os
from typing import Any

import click

from ..spec.templates import PRESETS
from .choosing_parts import SPLIT, VALIDATION_SPLIT, choose_parts
from .documents import dump
from .editor_schema import SCHEMA, with_schema, write_schema
from .exits import tell
from .new_files import write_new


@click.command(
    "init",
    short_help="Write a spec to begin with.",
    help="""Write a spec to begin with: data, loss, optimizer, schedule, output. The data need not be there yet; of a store that
    is, and has parts, the spec trains on train and validates on validation.

    \b
      purestep train init --dataset data/train.zarr --output-dir runs/one --out train.json
      purestep train init --dataset a.zarr --dataset b.zarr --output-dir runs/two --model my.models.Net --out two.json""",
)
@click.option("--dataset", "datasets", multiple=True, required=True, metavar="P", help="A store; may be given several times.")
@click.option("--output-dir", required=True, metavar="D", help="Directory of the run.")
@click.option("--out", required=True, metavar="FILE", help="The spec; must not exist.")
@click.option("--validation-dataset", "validation", multiple=True, metavar="P", help="A store to validate on.")
@SPLIT
@VALIDATION_SPLIT
@click.option("--model", metavar="CLS_PATH", help="Dotted path of the model, such as purestep.models.PaiNN.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True, help="Peak learning rate.")
@click.option("--num-steps", type=click.IntRange(min=1), help="Updates; 1000 if nothing else is said.")
@click.option("--num-epochs", type=click.IntRange(min=1), help="Passes over the data, instead.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Frames of a batch.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="adamw",
    show_default=True,
    help="Optimizer and schedule; wsd: constant for most of the run, then a fall, so that it can be made longer.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute.")
@SCHEMA
def command(datasets: tuple[str, ...], output_dir: str, out: str, validation: tuple[str, ...], lr: float, **choices: Any) -> None:
    """Write the spec."""
    from ..spec.templates import relative_to, template

    steps, epochs, beside = (choices.pop(name) for name in ("num_steps", "num_epochs", "schema"))
    if steps is not None and epochs is not None:
        raise click.UsageError("give --num-steps or --num-epochs, not both")
    if epochs is not None and choices["preset"] == "adamw-wsd":
        raise click.UsageError("--preset adamw-wsd needs --num-steps, since its learning rate falls at the end of them")
    directory = os.path.dirname(out)
    parts = choose_parts(datasets, validation, choices.pop("split"), choices.pop("validation_split"))
    spec = template(
        [relative_to(path, directory) for path in datasets],
        relative_to(output_dir, directory),
        learning_rate=lr,
        num_steps=1000 if steps is None and epochs is None else steps,
        num_epochs=epochs,
        validation_paths=[relative_to(path, directory) for path in validation],
        **parts._asdict(),
        name=os.path.basename(os.path.normpath(output_dir)),
        **choices,
    )
    write_new(out, dump(with_schema(spec) if beside else spec) + "\n")
    if beside:
        write_schema(directory)
    fill = "" if choices["model"] is not None else "fill strategy.model_specs, then: "
    tell(f"wrote {out}: {parts.text()}", f"next: {fill}purestep spec report {out}")
