"""The command `purestep schema dump`: the JSON Schema of specs."""

import click

from .documents import dump
from .exits import tell
from .new_files import write_new


@click.command(
    "dump",
    short_help="Print the JSON Schema of specs.",
    help="""Print the JSON Schema of specs, from which editors complete and explain.

    \b
      purestep schema dump --out purestep.schema.json    then "$schema": "./purestep.schema.json" in a spec""",
)
@click.option("--out", metavar="FILE", help="Write to a file, which must not exist.")
def command(out: str | None) -> None:
    """Print, or write."""
    from ..spec.reading import schema

    text = dump(schema())
    if out is None:
        click.echo(text)
        return
    write_new(out, text + "\n")
    tell(f"wrote {out}")
