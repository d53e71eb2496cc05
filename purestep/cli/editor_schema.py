"""The option of `train init` and `finetune init` that lays the JSON Schema beside a new spec, for editors.

It is asked for, since making the schema takes seconds, and the spec itself none.
"""

import os
from collections.abc import Mapping
from typing import Any

import click

from .documents import dump
from .exits import tell
from .new_files import write_new

FILE = "purestep.schema.json"
SCHEMA = click.option("--schema", is_flag=True, help=f"Write {FILE} beside the spec, from which editors complete and explain.")


def with_schema(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec that names the schema beside it."""
    return {"$schema": f"./{FILE}", **spec}


def write_schema(directory: str) -> None:
    """Write the schema into the directory of a spec; one that is there stays, and if it is another one that is said."""
    from ..spec.reading import schema

    path, text = os.path.join(directory, FILE), dump(schema()) + "\n"
    if not os.path.lexists(path):
        write_new(path, text)
        tell(f"wrote {path}")
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        same = file.read() == text
    tell(f"{path} is there already" + ("" if same else "; it is not of this version of purestep, and is left as it is"))
