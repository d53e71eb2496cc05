"""The options that say which parts of the stores a new spec trains and validates on, and what holds without them."""

from collections.abc import Sequence
from typing import NamedTuple

import click

_PARTS = ("train", "validation", "test")

SPLIT = click.option(
    "--split", type=click.Choice([*_PARTS, "all"]), help="Part of the stores to train on. Default: train, where they have parts."
)
VALIDATION_SPLIT = click.option(
    "--validation-split", type=click.Choice([*_PARTS, "none"]), help="Part to validate on. Default: validation, where they have one."
)


class Parts(NamedTuple):
    """What is written into the spec; None: nothing."""

    split: str | None
    validation_split: str | None

    def text(self) -> str:
        """What was chosen, in words."""
        validated = f", validates on {self.validation_split}" if self.validation_split is not None else ""
        return f"trains on {self.split or 'all frames'}{validated}"


def choose_parts(paths: Sequence[str], validation_paths: Sequence[str], split: str | None, validation_split: str | None) -> Parts:
    """The parts that were asked for, and else those that the stores bring along, as far as these are there already.

    Args:
        paths: Stores that are trained on, as seen from here.
        validation_paths: Stores that are validated on; without them it is a part of `paths`.
        split: As given on the command line; `all`: every frame.
        validation_split: As given on the command line.
    """
    from ..spec.own_parts import own_split, own_validation_split

    trained = own_split(paths) if split is None else split
    validated = validation_split
    if validated is None and not validation_paths:
        validated = own_validation_split(paths)
    # frames that are trained on say nothing about those that are not
    if validation_split is None and validated is not None and trained in (None, "all", validated):
        validated = None
    return Parts(None if trained == "all" else trained, None if validated == "none" else validated)
