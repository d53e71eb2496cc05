"""The command `purestep lr find`: which learning rates a training bears."""

import math
from typing import TYPE_CHECKING, Any

import click

from . import documents
from .exits import ExitCode, Refusal, tell
from .new_files import check_new

if TYPE_CHECKING:
    from .lr_range import RangeTest, Suggestion

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 64


@click.command(
    "find",
    short_help="Measure which learning rates a training bears.",
    help="""Measure which learning rates a training bears: the spec is trained from its beginning at rates that grow from batch to batch.

    \b
      purestep lr find train.json --png rates.png
      purestep lr find train.json --from 1e-6 --to 1 --steps 200 --json

    Nothing is written into the run, and the spec stays as it is. Its schedule plays no part; everything else of it does.""",
)
@click.argument("path", metavar="SPEC")
@click.option("--from", "low", type=click.FloatRange(min=0, min_open=True), default=1e-6, show_default=True, help="First rate.")
@click.option("--to", "high", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Last rate.")
@click.option("--steps", type=click.IntRange(min=10), default=100, show_default=True, help="Batches, one at each rate.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option("--png", metavar="FILE", help="Draw it; must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all that was measured.")
def command(path: str, low: float, high: float, steps: int, png: str | None, as_json: bool, **options: Any) -> None:
    """Measure, and suggest."""
    if not low < high:
        raise click.UsageError(f"--from {low:g} must be less than --to {high:g}")
    if png is not None:
        check_new(png)
    from .lr_range import suggest

    test, settings = _measure(path, low, high, steps, **options)
    suggestion = suggest(test)
    if png is not None:
        from .lr_picture import draw_range_test

        draw_range_test(test, suggestion, png)
        tell(f"wrote {png}")
    if as_json:
        stated = None if suggestion is None else suggestion._asdict()
        documents.emit({"schema": "purestep.lr-find/1", "suggestion": stated, "runtime": settings, **test._asdict()})
    else:
        click.echo("\n".join(_lines(test, suggestion)))


def _measure(
    path: str, low: float, high: float, steps: int, overrides: tuple[str, ...], trust: tuple[str, ...]
) -> "tuple[RangeTest, dict[str, Any]]":
    """What was measured, and the settings of the process that it was measured under."""
    from ..spec.starting import first_state
    from .lr_range import run_range_test, with_rate
    from .preparing import compiled, prepared, read

    spec, given = with_rate(read(path, overrides), low)
    if len(given) > 1:
        shown = ", ".join("a schedule" if rate != rate else f"{rate:g}" for rate in given)
        advice = ["leave learning_rate out of the parts of strategy.update, and give strategy.schedule"]
        raise Refusal(f"{path} has several learning rates ({shown}), and a range test sweeps one", ExitCode.SPEC, advice)
    rates = [low * (high / low) ** (number / (steps - 1)) for number in range(steps)]
    with prepared(spec, trust) as (_, pieces, device, settings):
        training = pieces.training
        step = compiled(spec, pieces) or training.step
        state, _ = first_state(spec, training, device)
        try:
            return run_range_test(step, training.end_epoch, pieces.batches, state, rates), settings
        except KeyError as error:
            raise Refusal(f"{path}: the update has no learning rate to sweep: {error.args[0]}", ExitCode.SPEC) from error


def _lines(test: "RangeTest", suggestion: "Suggestion | None") -> list[str]:
    span = f"{test.rates[0]:.2g} to {test.rates[-1]:.2g}" if test.rates else "none"
    lines = [f"rates    {span}, {len(test.rates)} batches; {test.stopped}"]
    if test.means:
        lines.append(f"loss     |{_bars(test.means)}|  {max(test.means):.4g} to {min(test.means):.4g}, running mean")
    if suggestion is None:
        return [*lines, "suggests nothing: the loss did not fall in between; try other --from and --to, or more --steps"]
    return [
        *lines,
        f"suggests {suggestion.steepest:.2g}: there the loss falls fastest",
        f"         {suggestion.least:.2g} has the least loss, at the edge of what the training bears; a tenth of it is a usual peak",
    ]


def _bars(values: tuple[float, ...]) -> str:
    """Heights of the values, on a logarithmic scale where they have one; a loss that blows up is cut off."""
    from .lr_range import CEILING

    ceiling = max(CEILING * values[0], min(values))
    places = [at * (len(values) - 1) // (_WIDTH - 1) for at in range(_WIDTH)] if len(values) > _WIDTH else range(len(values))
    shown = [min(values[at], ceiling) for at in places]
    heights = [math.log(value) for value in shown] if min(shown) > 0 else shown
    low, high = min(heights), max(heights)
    return "".join(_BARS[round((height - low) / (high - low) * (len(_BARS) - 1)) if high > low else 0] for height in heights)
