"""The command `purestep explain`: what a code means, what leads to it, and what to do."""

import textwrap

import click

from . import documents

_WIDTH = 100


@click.command(
    "explain",
    short_help="Say what a code means.",
    help="""Say what an exit code, or the code of a problem, means; what leads to it, and what to do. Without a code: all of them.

    \b
      purestep explain PS104
      purestep explain 75""",
)
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(codes: tuple[str, ...], as_json: bool) -> None:
    """Look the codes up and print."""
    from .explanations import explanations

    known = explanations()
    asked = [code.upper() for code in codes]
    if unknown := [code for code in asked if code not in known]:
        from ..spec.problems import nearest

        raise click.UsageError(f"there is no code {unknown[0]}{nearest(unknown[0], known)}")
    chosen = {code: known[code] for code in asked or known}
    if as_json:
        documents.emit({"schema": "purestep.explain/1", "codes": {code: found._asdict() for code, found in chosen.items()}})
    elif codes:
        blocks = [f"{code}  {found.meaning}\n\n{_wrapped(found.cause)}\n\n{_wrapped(found.remedy)}" for code, found in chosen.items()]
        click.echo("\n\n".join(blocks))
    else:
        for code, found in chosen.items():
            click.echo(f"{code:<7}{found.meaning}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
