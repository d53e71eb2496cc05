"""The command `purestep finetune init`: a spec that starts from weights. It asks stores only for their parts, and writes over nothing."""

import os
from typing import Any

import click

from ..spec.templates import finetune_template, relative_to
from .exits import ExitCode, Refusal
from .new_spec import options, template_arguments, write_spec


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
@options(
    click.option("--model", metavar="CLS_PATH", help="Dotted path of the model, where the weights do not say."),
    click.option("--trainable", multiple=True, metavar="GLOB", help="Parameters that are trained; all, if not given."),
    click.option("--freeze", "frozen", multiple=True, metavar="GLOB", help="Parameters that are not."),
    click.option(
        "--load", "patterns", multiple=True, metavar="GLOB", help="Weights that are loaded; the others begin anew. All, if not given."
    ),
    learning_rate=1e-5,
)
def command(source: str, out: str, model: str | None, schema: bool, **choices: Any) -> None:
    """Write the spec."""
    arguments, recipe = template_arguments(out=out, **choices), recipe_of(source)
    if model is not None:
        recipe = {**recipe, "model_specs": {"main": {"cls_path": model}}}
    write_spec(out, finetune_template(relative_to(source, os.path.dirname(out)), recipe, **arguments), schema=schema)


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
