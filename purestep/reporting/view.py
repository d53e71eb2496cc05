"""What there is to see of a run at one report, as plain values; and curves as one line of text. How it looks is `layouts.py`."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from .meter import Pace
from .pace import Goal

_BARS = "▁▂▃▄▅▆▇█"
_MOST_POINTS = 512
_CURVES = ("loss/total", "validation/loss/total", "update/grad_norm")


@dataclasses.dataclass(frozen=True)
class View:
    """Everything that a layout can draw."""

    title: str
    count: str
    """Where the run is, in the unit of its target."""
    line: str
    """The same with the leading metrics and the pace, for layouts of one line."""
    unit: str
    """What a sample is called."""
    pace: Pace
    metrics: Mapping[str, float]
    """Of the latest report; those of the latest validation under `validation/`."""
    curves: Mapping[str, Sequence[float]]
    """Values over the whole run, thinned out."""
    messages: Sequence[str] = ()
    constants: frozenset[str] = frozenset()
    """Metrics that were the same at every report, of which there was more than one."""


def example_view() -> View:
    """A run in its middle, to look at layouts without one. The numbers are made up."""
    loss = [2.0 * math.exp(-place / 40) + 0.1 + 0.05 * math.sin(place) for place in range(200)]
    metrics = {
        "loss/total": loss[-1],
        "loss/EnergyMSELoss/unweighted": 0.031,
        "loss/ForceMSELoss/unweighted": 0.0087,
        "optimizer/adamw/lr": 4e-4,
        "update/grad_norm": 1.7,
        "validation/loss/total": 0.142,
    }
    curves = {"loss/total": loss, "validation/loss/total": loss[::20], "optimizer/adamw/lr": [1e-3 * (1 - p / 260) for p in range(200)]}
    pace = Pace(Goal(2000, 5000), steps_per_s=12.9, batches_per_s=12.9, samples_per_s=412.0, eta_s=232.0)
    line = "step 2000/5000  loss 0.1137  lr 4.00e-04  grad 1.7  412 frames/s  eta 3m52s"
    return View("my-model", "step 2000/5000", line, "frames", pace, metrics, curves, ("step 2000  validation loss 0.142",))


class Memory:
    """What the reports of a run have said so far."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        """The latest values."""
        self.curves: dict[str, list[float]] = {}
        self._reports: dict[str, int] = {}
        self._changed: set[str] = set()

    def add(self, values: Mapping[str, float]) -> None:
        """Take in the metrics of one report."""
        self._changed |= {name for name, value in values.items() if self.metrics.get(name, value) != value}
        self.metrics |= values
        for name in values:
            self._reports[name] = self._reports.get(name, 0) + 1
        for name in [*(name for name in _CURVES if name in values), *(name for name in values if name.endswith("/lr"))]:
            self.curves[name] = keep_point(self.curves.get(name, []), values[name])

    def constants(self) -> frozenset[str]:
        """The metrics that have had more than one chance to change, and did not."""
        return frozenset(name for name, count in self._reports.items() if count > 1 and name not in self._changed)


def keep_point(values: list[float], value: float) -> list[float]:
    """A curve with one more point; every second one is dropped when there are too many, so that it always spans the run."""
    grown = [*values, value]
    return grown[::2] if len(grown) > _MOST_POINTS else grown


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """A curve as one line of block characters, the mean of the points that share a column; logarithmic where all are positive.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, 3.0], width=4)
        '▁▃▆█'
        >>> sparkline([float("nan")], width=4)
        ''
    """
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    if columns == 0:
        return ""
    heights = [math.log(value) for value in finite] if min(finite) > 0 else finite
    edges = [place * len(heights) // columns for place in range(columns + 1)]
    means = [sum(heights[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1)) if span > 0 else 0] for mean in means)
