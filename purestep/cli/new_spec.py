"""What `train init` and `finetune init` share: the options of any new spec, what they say to its template, and its file."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ..spec.templates import relative_to
from .choosing_parts import SPLIT, VALIDATION_SPLIT, Parts, choose_parts
from .documents import dump
from .editor_schema import SCHEMA, with_schema, write_schema
from .exits import tell
from .new_files import write_new

Decorator = Callable[[Any], Any]

_PLACES = (
    click.option("--dataset", "datasets", multiple=True, required=True, metavar="P", help="A store; may be given several times."),
    click.option("--output-dir", required=True, metavar="D", help="Directory of the run."),
    click.option("--out", required=True, metavar="FILE", help="The spec; must not exist."),
    click.option("--validation-dataset", "validation", multiple=True, metavar="P", help="A store to validate on."),
    SPLIT,
    VALIDATION_SPLIT,
)
_COURSE = (
    click.option("--num-steps", type=click.IntRange(min=1), help="Updates; 1000 if nothing else is said."),
    click.option("--num-epochs", type=click.IntRange(min=1), help="Passes over the data, instead."),
    click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Frames of a batch."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute."),
    SCHEMA,
)


def options(*own: Decorator, learning_rate: float) -> Decorator:
    """The options of a command that writes a new spec.

    Args:
        own: Those that only this command has; they stand between the places and the course of the run.
        learning_rate: Default of the peak.
    """
    rate = click.option(
        "--lr", type=click.FloatRange(min=0, min_open=True), default=learning_rate, show_default=True, help="Peak learning rate."
    )

    def decorate(command: Any) -> Any:
        for option in reversed((*_PLACES, *own, rate, *_COURSE)):  # click shows the last that is put on first
            command = option(command)
        return command

    return decorate


def template_arguments(
    datasets: Sequence[str],
    output_dir: str,
    out: str,
    validation: Sequence[str],
    split: str | None,
    validation_split: str | None,
    lr: float,
    num_steps: int | None,
    num_epochs: int | None,
    **others: Any,
) -> dict[str, Any]:
    """The shared options as arguments of `template`, with paths as the spec has to write them; others are handed on.

    Raises:
        UsageError: If two lengths are given.
    """
    if num_steps is not None and num_epochs is not None:
        raise click.UsageError("give --num-steps or --num-epochs, not both")
    directory = os.path.dirname(out)
    return {
        "paths": [relative_to(path, directory) for path in datasets],
        "run_dir": relative_to(output_dir, directory),
        "learning_rate": lr,
        "num_steps": 1000 if num_steps is None and num_epochs is None else num_steps,
        "num_epochs": num_epochs,
        "validation_paths": [relative_to(path, directory) for path in validation],
        **choose_parts(datasets, validation, split, validation_split)._asdict(),
        "name": os.path.basename(os.path.normpath(output_dir)),
        **others,
    }


def write_spec(out: str, spec: Mapping[str, Any], *, schema: bool) -> None:
    """Write a new spec, and the schema beside it if that was asked for; say what it trains on, and what to do next.

    Raises:
        Refusal: If the file is there already.
    """
    write_new(out, dump(with_schema(spec) if schema else spec) + "\n")
    if schema:
        write_schema(os.path.dirname(out))
    parts = Parts(spec["dataset"].get("split"), spec["dataset"].get("validation_split"))
    fill = "" if spec["strategy"]["model_specs"] else "fill strategy.model_specs, then: "
    tell(f"wrote {out}: {parts.text()}", f"next: {fill}purestep spec report {out}")
