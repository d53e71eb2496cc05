"""Overrides from a command line: `path=value`, a value of a document named by its keys joined with dots."""

import copy
from collections.abc import Sequence
from typing import Any

from . import positions
from .problems import Problem


def apply(overrides: Sequence[str], document: Any, offsets: dict[str, int]) -> tuple[Any, dict[str, int], list[Problem]]:
    """A document with other values; those that were replaced have no place in the text any more.

    A value is JSON, or else text: `runtime.seed=3`, `name=try-2`, `strategy.hooks=[]`. Items of lists go by number.
    """
    document, offsets = copy.deepcopy(document), dict(offsets)
    problems = []
    for override in overrides:
        path, equals, text = override.partition("=")
        parts = path.split(".")
        message = "must look like path=value, such as strategy.num_steps=10" if not equals else _put(document, parts, _value(text))
        if message is not None:
            problems.append(Problem("PS101", "", f"--set {override}: {message}"))
            continue
        pointer = "".join(f"/{positions.escape(part)}" for part in parts)
        offsets = {place: at for place, at in offsets.items() if not place.startswith((f"{pointer}/", f"{pointer}#"))}
        offsets |= {pointer: positions.NOWHERE, f"{pointer}#": positions.NOWHERE}
    return document, offsets, problems


def _value(text: str) -> Any:
    read = positions.read(text)
    return text if read.problems else read.value


def _put(document: Any, parts: list[str], value: Any) -> str | None:
    """Set one value, in objects that are made if they are missing; what is wrong with the path. What keys there may be is checked later."""
    *outer, last = parts
    for part in outer:
        if isinstance(document, dict):
            document[part] = {} if document.get(part) is None else document[part]
        elif not _is_index(part, document):
            return f"there is nothing at '{part}'"
        document = document[part] if isinstance(document, dict) else document[int(part)]
    if isinstance(document, dict):
        document[last] = value
    elif _is_index(last, document):
        document[int(last)] = value
    else:
        return f"there is nothing at '{last}'"
    return None


def _is_index(part: str, document: Any) -> bool:
    return isinstance(document, list) and part.isascii() and part.isdecimal() and int(part) < len(document)
