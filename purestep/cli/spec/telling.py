"""How a run is told of, beyond its log: options that `run` and `resume` share."""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from ...reporting import ConsoleProgress, Profile

_PROGRESS = ("auto", "rich", "plain", "json", "none", "line", "dashboard")


class Telling(NamedTuple):
    """What was chosen."""

    progress: str
    profile: tuple[int, int] | None
    """First and last batch."""
    report: bool
    """Whether a page is written at the end."""


def _batches(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", value)
    if found is None or not int(found[1]) < int(found[2]):
        raise click.BadParameter(f"give two counts of batches, the second larger, such as 10:20; got {value!r}")
    return int(found[1]), int(found[2])


PROGRESS = click.option(
    "--progress",
    type=click.Choice(_PROGRESS),
    default="auto",
    help="On stderr: a live dashboard or line where there is a terminal for it, plain lines, lines of JSON, or nothing.",
)
PROFILE = click.option(
    "--profile", metavar="A:B", callback=_batches, help="Profile batches A to B; a trace and a table of seconds in the run's trace/."
)
REPORT = click.option("--report/--no-report", default=True, help="Write a page with curves and errors, report.html, at the end.")


def telling_of(options: dict[str, Any]) -> Telling:
    """What the options say."""
    return Telling(options["progress"], options["profile"], options["report"])


def make_progress(chosen: str, **settings: Any) -> "ConsoleProgress":
    """The listener that shows how the run goes."""
    from ...reporting import DASHBOARD, LINE, ConsoleProgress

    layouts = {"line": LINE, "dashboard": DASHBOARD}
    if chosen in layouts:
        return ConsoleProgress(mode="auto", layout=layouts[chosen], **settings)
    return ConsoleProgress(mode=chosen, **settings)  # type: ignore[arg-type]


def make_profile(chosen: tuple[int, int], directory: str) -> "Profile":
    """The listener that profiles some batches."""
    from ...reporting import Profile

    return Profile(*chosen, directory)
