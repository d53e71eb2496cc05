"""The command `purestep spec upgrade`: an old spec, written in the version of today."""

import os

import click

from ..documents import dump
from ..exits import tell
from ..new_files import write_new


@click.command(
    "upgrade",
    short_help="Write an old spec in today's version.",
    help="""Write a spec of an old version, or of the toolkit whose envelope ours resembles, in the version of today.

    \b
      purestep spec upgrade old.json --out new.json

    The file itself is left as it is. A spec of today's version comes out as it went in.""",
)
@click.argument("spec", metavar="SPEC")
@click.option("--out", metavar="FILE", help="Write to a file, which must not exist; else to stdout.")
def command(spec: str, out: str | None) -> None:
    """Read, migrate, check, write."""
    from ...spec import positions
    from ...spec.paths import moved
    from ...spec.reading import InvalidSpecError
    from ...spec.versions import upgrade
    from .documents_of_specs import refuse_bad, text_of

    read = positions.read(text_of(spec))
    if read.problems:
        raise InvalidSpecError(read.problems, spec)
    document, notes = upgrade(read.value)
    refuse_bad(document, spec)
    document = moved(document, os.path.dirname(spec), os.path.dirname(out) if out is not None else os.path.dirname(spec))
    tell(*notes)
    if out is None:
        click.echo(dump(document))
        return
    write_new(out, dump(document) + "\n")
    tell(f"wrote {out}; {len(notes)} changes" if notes else f"wrote {out}; nothing was to be changed")
