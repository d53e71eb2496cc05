"""From text to a spec: everything that is wrong with it at once, each with its line. Nothing that a spec names is imported or called."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import SpecError
from . import positions
from .envelope import Spec
from .field_errors import problems_of
from .overrides import apply
from .parts import PartError, make_optimizer, problems_of_parts, takes_schedule
from .problems import Problem
from .reference_envelope import from_reference
from .target import targets_in


class Reading(NamedTuple):
    """What a text says."""

    spec: Spec | None
    """None if there are problems."""
    problems: tuple[Problem, ...]


class InvalidSpecError(SpecError):
    """A spec that cannot be used; the message holds every problem, a line each.

    Args:
        problems: What is wrong.
        file: Where the spec stands.
    """

    def __init__(self, problems: Sequence[Problem], file: str):
        super().__init__("\n".join(problem.text(file) for problem in problems))
        self.problems = tuple(problems)
        self.file = file


def read_spec(path: str | os.PathLike, overrides: Sequence[str] = ()) -> Spec:
    """Read a spec from a file.

    Args:
        overrides: `path=value`, in the place of what the file says, such as `strategy.num_steps=10`.

    Raises:
        InvalidSpecError: If anything is wrong with it.
        OSError: If the file cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    spec, problems = check_text(text, overrides)
    if spec is None:
        raise InvalidSpecError(problems, os.fspath(path))
    return spec


def check_text(text: str, overrides: Sequence[str] = ()) -> Reading:
    """Read a spec from text, and find all that is wrong."""
    document = positions.read(text)
    problems = list(document.problems)
    if any(problem.code == "PS100" for problem in problems):
        return Reading(None, tuple(problems))
    value, notes = from_reference(document.value)
    value, offsets, failed = apply(overrides, value, _follow(notes.moves, document.offsets))
    problems += [placed(problem, text, offsets) for problem in notes.problems] + failed
    said = {problem.pointer for problem in problems}
    try:
        spec = Spec.model_validate_json(positions.dump(value))
    except ValidationError as failure:
        found = problems_of(failure, value)
    else:
        # a number that is not finite reads as null here, and so would contradict what it does not
        found = problems_of_parts(spec) + ([] if problems else _contradictions(spec))
    problems += [placed(problem, text, offsets) for problem in found if problem.pointer.removesuffix("#") not in said]
    ordered = tuple(sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column)))
    return Reading(None if ordered else spec, ordered)


def notes_of(text: str) -> tuple[str, ...]:
    """What is read under another name than it is written, a line each."""
    return tuple(from_reference(positions.read(text).value)[1].lines)


def _follow(moves: Sequence[tuple[str, str]], offsets: dict[str, int]) -> dict[str, int]:
    """The offsets of values that have another place in the document than in the text."""
    moved = dict(offsets)
    for old, new in moves:
        inside = {place: at for place, at in moved.items() if place == old or place.startswith((f"{old}/", f"{old}#"))}
        moved |= {new + place.removeprefix(old): at for place, at in inside.items()}
    return moved


def placed(problem: Problem, text: str, offsets: dict[str, int]) -> Problem:
    """The problem with line and column: those of its value, or of the nearest one around it."""
    around = problem.pointer
    while around and around not in offsets:
        around = around.rpartition("/")[0]
    pointer = problem.pointer.removesuffix("#")
    if offsets[around] == positions.NOWHERE:  # it comes from the command line
        return problem._replace(pointer=pointer)
    line, column = positions.line_and_column(text, offsets[around])
    return problem._replace(pointer=pointer, line=line, column=column)


def _contradictions(spec: Spec) -> list[Problem]:
    """What is wrong between fields that are right on their own."""
    strategy, validation, dataset = spec.strategy, spec.validation, spec.dataset
    lengths = [length for length in (strategy.num_steps, strategy.num_epochs, strategy.num_batches) if length is not None]
    validates = bool(dataset.validation_paths) or dataset.validation_split is not None
    unwatched = "there is nothing to validate on; give dataset.validation_paths or dataset.validation_split"
    rules = {
        "/strategy": (
            len(lengths) > 1 or (not lengths and spec.runtime.time_budget is None),
            "give exactly one of num_steps, num_epochs and num_batches, or runtime.time_budget",
        ),
        "/strategy/schedule": (
            strategy.schedule is not None and not any(any(targets_in(part)) or takes_schedule(part) for part in strategy.update),
            "no part of update takes it: each has a learning_rate of its own, or none; leave one of them out",
        ),
        "/source": (
            (spec.source is None) == (spec.workflow == "finetune"),
            'source says where the first weights come from: "finetune" needs it, "train" has none',
        ),
        "/strategy/model_specs": (
            len(strategy.model_specs) > 1,
            "several models need a function that says how they work together; write this run in Python",
        ),
        "/validation": (
            validation is not None and not validates,
            unwatched,
        ),
        "/strategy/early_stopping": (strategy.early_stopping is not None and not validates, unwatched),
        "/strategy/target_metric": (strategy.target_metric is not None and not validates, unwatched),
        "/validation/every_n_epochs": (
            validation is not None and validation.every_n_steps is not None and validation.every_n_epochs is not None,
            "give every_n_steps or every_n_epochs, not both",
        ),
        "/runtime/precision": (
            spec.runtime.precision == "fp16" and not _scales_loss(spec),
            "fp16 needs dynamic_loss_scale first in update",
        ),
    }
    settings = spec.runtime.compile
    if settings is not None:
        rules["/runtime/compile/donate"] = (settings.donate and settings.capture == "dynamo", 'capture "dynamo" cannot donate; use "trace"')
        rules["/runtime/compile/mode"] = (settings.mode == "reduce-overhead" and not settings.donate, "reduce-overhead needs donate")
    return [Problem("PS108", pointer, message) for pointer, (broken, message) in rules.items() if broken]


def _scales_loss(spec: Spec) -> bool:
    if any(targets_in(spec.strategy.update)):
        return True  # nobody knows before it is imported; the training says so then
    try:
        return make_optimizer(spec.strategy).scale_loss is not None
    except PartError:
        return True  # reported where it stands


def document_of(spec: Spec) -> dict[str, Any]:
    """The spec as plain JSON, defaults written out."""
    return spec.model_dump(mode="json", by_alias=True)


def schema() -> dict[str, Any]:
    """The JSON Schema of specs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Spec.model_json_schema(by_alias=True)}
