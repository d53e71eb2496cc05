"""JSON documents that commands write: to files that are whole or absent, and to stdout, one for a command."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import click


def dump(document: Mapping[str, Any]) -> str:
    """Text of a document, indented. NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def write(path: str, document: Mapping[str, Any]) -> None:
    """Write a document; a reader sees the old one or the new one."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(dump(document) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path: str) -> dict[str, Any]:
    """Read a document that `write` wrote."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def emit(document: Mapping[str, Any]) -> None:
    """Print the one document of a command to stdout."""
    click.echo(dump(document))
