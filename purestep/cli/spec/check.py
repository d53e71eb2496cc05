"""The command `purestep spec check`: one line for each problem, nothing if there is none."""

import click

from ..exits import ExitCode


@click.command(
    "check",
    short_help="Find what is wrong with specs.",
    help="""Find what is wrong with specs, without importing or calling anything that they name. Silent if nothing is.

    \b
      purestep spec check train.json other.json    exit code 3 if anything is wrong""",
)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
def command(specs: tuple[str, ...]) -> int:
    """Check each."""
    from ...spec.reading import check_text

    found = 0
    for path in specs:
        with open(path, encoding="utf-8", errors="replace") as file:
            problems = check_text(file.read()).problems
        found += len(problems)
        for problem in problems:
            click.echo(problem.text(path))
    return int(ExitCode.SPEC if found else ExitCode.DONE)
