"""The command `purestep spec check`: one line for each problem, nothing if there is none."""

import click

from .. import documents
from ..exits import ExitCode, tell


@click.command(
    "check",
    short_help="Find what is wrong with specs.",
    help="""Find what is wrong with specs, without importing or calling anything that they name. Silent if nothing is.

    \b
      purestep spec check train.json other.json    exit code 3 if anything is wrong
      purestep spec check train.json --json        for editors""",
)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(specs: tuple[str, ...], as_json: bool) -> int:
    """Check each."""
    from ...spec.reading import check_text
    from .documents_of_specs import text_of

    found = [(path, problem) for path in specs for problem in check_text(text_of(path)).problems]
    if as_json:
        problems = [{"file": path, **problem._asdict()} for path, problem in found]
        documents.emit({"schema": "purestep.spec-check/1", "problems": problems})
    else:
        for path, problem in found:
            click.echo(problem.text(path))
        if any(problem.code != "PS108" for _, problem in found):
            tell("fix these first: whether fields contradict each other is asked when each is right on its own")
    return int(ExitCode.SPEC if found else ExitCode.DONE)
