"""The command `purestep spec diff`: what two specs say differently, defaults included."""

import click

from .. import documents
from ..exits import ExitCode, tell


@click.command(
    "diff",
    short_help="Say what two specs say differently.",
    help="""Say what two specs say differently: a line for each value, nothing if they mean the same run.

    \b
      purestep spec diff train.json other.json
      purestep spec diff runs/first runs/second    the specs of two runs

    Defaults are written out and paths made absolute before, so that what is left out equals what is said.
    `~` is another value, `+` one that only the second has, `-` one that only the first has.""",
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(first: str, second: str, as_json: bool) -> int:
    """Compare."""
    from ...spec.differences import ABSENT, differences
    from ...spec.reading import document_of
    from .documents_of_specs import read

    found = list(differences(document_of(read(first)), document_of(read(second))))
    if as_json:
        sides = [{name: getattr(one, name) for name in ("before", "after") if getattr(one, name) is not ABSENT} for one in found]
        listed = [{"pointer": one.pointer, **values} for one, values in zip(found, sides, strict=True)]
        documents.emit({"schema": "purestep.spec-diff/1", "differences": listed})
    else:
        for one in found:
            click.echo(one.text())
    tell(f"{len(found)} difference{'' if len(found) == 1 else 's'}")
    return int(ExitCode.DONE)
