"""Paths in specs: which fields hold them, and how they are written as seen from another directory. What lies there is not looked at."""

import copy
import os
from collections.abc import Callable
from typing import Any

SHIPPED = "shipped:"
"""How the path of a store begins that comes with the package."""
FIELDS = (("dataset", "paths"), ("dataset", "validation_paths"), ("source", "checkpoint_path"), ("output", "run_dir"))
"""Section and name of each field that holds a path, or a list of them."""


def with_paths(document: Any, change: Callable[[str], str]) -> Any:
    """A copy of a document with its paths changed; what is missing, or is no path, stays as it is."""
    document = copy.deepcopy(document)
    for section, name in FIELDS:
        place = document.get(section) if isinstance(document, dict) else None
        if isinstance(place, dict) and name in place:
            place[name] = _changed(place[name], change)
    return document


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def whole(path: str, directory: str) -> str:
    """A path of a spec in `directory`, absolute.

    Example:
        >>> whole("shipped:g2", "runs")
        'shipped:g2'
    """
    return path if path.startswith(SHIPPED) else os.path.abspath(os.path.join(directory, path))


def moved(document: Any, source: str, target: str) -> Any:
    """A document of the directory `source`, as it has to be written in the directory `target` to mean the same paths.

    Example:
        >>> moved({"output": {"run_dir": "run"}}, "a", "b")
        {'output': {'run_dir': '../a/run'}}
    """

    def change(path: str) -> str:
        if os.path.isabs(path) or path.startswith(SHIPPED):
            return path
        return os.path.relpath(os.path.join(source, path), target or ".")

    return with_paths(document, change)
