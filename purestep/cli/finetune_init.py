"""The command `purestep finetune init`: a spec that starts from weights. It asks stores only for their parts, and writes over nothing."""

import os
from typing import Any

import click

from .choosing_parts import SPLIT, VALIDATION_SPLIT, choose_parts
from .documents import dump
from .editor_schema import SCHEMA, with_schema, write_schema
from .exits import ExitCode, Refusal, tell
from .new_files import write_new


@click.command(
    "init",
    short_help="Write a spec that starts from weights.",
    help="""Write a spec that starts from the weights of a run, a checkpoint, or a file; optimizer and counters begin anew.

    \b
      purestep finetune init runs/first --dataset new.zarr --output-dir runs/second --out second.json
      purestep finetune init model.safetensors --model my.models.Net --dataset new.zarr --output-dir runs/x --out x.json
      purestep finetune init runs/first --trainable 'readout.*' --dataset new.zarr --output-dir runs/y --out y.json

    The model of a run is that of its spec; for anything else give --model, or fill it in.""",
)
@click.argument("source", metavar="WEIGHTS")
@click.option("--dataset", "datasets", multiple=True, required=True, metavar="P", help="A store; may be given several times.")
@click.option("--output-dir", required=True, metavar="D", help="Directory of the run.")
@click.option("--out", required=True, metavar="FILE", help="The spec; must not exist.")
@click.option("--validation-dataset", "validation", multiple=True, metavar="P", help="A store to validate on.")
@SPLIT
@VALIDATION_SPLIT
@click.option("--model", metavar="CLS_PATH", help="Dotted path of the model, where the weights do not say.")
@click.option("--trainable", multiple=True, metavar="GLOB", help="Parameters that are trained; all, if not given.")
@click.option("--freeze", "frozen", multiple=True, metavar="GLOB", help="Parameters that are not.")
@click.option(
    "--load", "patterns", multiple=True, metavar="GLOB", help="Weights that are loaded; the others begin anew. All, if not given."
)
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=1e-5, show_default=True, help="Peak learning rate.")
@click.option("--num-steps", type=click.IntRange(min=1), help="Updates; 1000 if nothing else is said.")
@click.option("--num-epochs", type=click.IntRange(min=1), help="Passes over the data, instead.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Frames of a batch.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute.")
@SCHEMA
def command(source: str, datasets: tuple[str, ...], output_dir: str, out: str, validation: tuple[str, ...], **choices: Any) -> None:
    """Write the spec."""
    from ..spec.templates import finetune_template, relative_to

    steps, epochs, beside = (choices.pop(name) for name in ("num_steps", "num_epochs", "schema"))
    if steps is not None and epochs is not None:
        raise click.UsageError("give --num-steps or --num-epochs, not both")
    directory, model, recipe = os.path.dirname(out), choices.pop("model"), recipe_of(source)
    if model is not None:
        recipe = {**recipe, "model_specs": {"main": {"cls_path": model}}}
    parts = choose_parts(datasets, validation, choices.pop("split"), choices.pop("validation_split"))
    spec = finetune_template(
        relative_to(source, directory),
        recipe,
        [relative_to(path, directory) for path in datasets],
        relative_to(output_dir, directory),
        learning_rate=choices.pop("lr"),
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
    fill = "" if spec["strategy"]["model_specs"] else "fill strategy.model_specs, then: "
    tell(f"wrote {out}: {parts.text()}", f"next: {fill}purestep spec report {out}")


def recipe_of(source: str) -> dict[str, Any]:
    """What the spec of a run says about its model; nothing of weights that are of no run.

    Raises:
        Refusal: If there is nothing at the path.
    """
    from ..spec.reading import read_spec

    if not os.path.exists(source):
        raise Refusal(f"there is no {source}", ExitCode.PATH)
    around = os.path.abspath(source)
    for directory in (around, os.path.dirname(around), os.path.dirname(os.path.dirname(around))):  # a run, its checkpoints, one of them
        if os.path.isfile(path := os.path.join(directory, "spec.json")):
            spec = read_spec(path)
            strategy = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)["strategy"]
            dataset = spec.dataset.model_dump(mode="json", include={"cutoff", "dtype"}, exclude_defaults=True)
            return {
                "model_specs": strategy.get("model_specs", {}),
                "loss": strategy["loss"],
                "dataset": {**dataset, "reference_energies": spec.dataset.reference_energies},
            }
    return {}
