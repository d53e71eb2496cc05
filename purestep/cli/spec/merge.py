"""The command `purestep spec merge`: a spec with overlays laid over it."""

import os
from typing import Any

import click

from ..documents import dump
from ..exits import ExitCode, Refusal, tell
from ..new_files import write_new


@click.command(
    "merge",
    short_help="Lay overlays over a spec.",
    help="""Lay overlays over a spec: files that hold only what is to be different.

    \b
      purestep spec merge train.json model.json --out merged.json

    Objects are merged field by field, as deep as they go; everything else is replaced, lists too, and so is an object with another
    `kind` or `cls_path`. Paths keep their meaning: each is relative to the file that it stands in. The result is checked.""",
)
@click.argument("spec", metavar="SPEC")
@click.argument("overlays", nargs=-1, required=True, metavar="OVERLAY...")
@click.option("--out", metavar="FILE", help="Write to a file, which must not exist; else to stdout.")
def command(spec: str, overlays: tuple[str, ...], out: str | None) -> None:
    """Merge, check, write."""
    from ...spec.merging import merge
    from .documents_of_specs import file_of, refuse_bad

    target = os.path.dirname(out) if out is not None else ""
    document = _document(file_of(spec), target)
    for path in overlays:
        document = merge(document, _document(path, target))
    refuse_bad(document, out or "the merged spec")
    text = dump(document)
    if out is None:
        click.echo(text)
        return
    write_new(out, text + "\n")
    tell(f"wrote {out}", f"next: purestep spec report {out}")


def _document(path: str, target: str) -> Any:
    """What a file says, with paths as they have to be written in the directory of the result."""
    from ...spec import positions
    from ...spec.paths import moved
    from ...spec.reading import InvalidSpecError
    from ...spec.reference_envelope import from_reference
    from .documents_of_specs import text_of

    read = positions.read(text_of(path))
    if read.problems:
        raise InvalidSpecError(read.problems, path)
    if not isinstance(read.value, dict):
        raise Refusal(f"{path}: a spec or an overlay is an object", ExitCode.SPEC)
    document, notes = from_reference(read.value)
    if notes.problems:
        raise InvalidSpecError(notes.problems, path)
    return moved(document, os.path.dirname(path), target)
