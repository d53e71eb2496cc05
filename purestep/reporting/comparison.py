"""Several runs in one picture: a panel for each metric, a curve for each run."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .canvas import COLORS, INK, axes, use_log_if_wide, write_png

Against = Literal["batch", "step", "epoch"]
_SMOOTHED_FROM = 40  # points of a curve; shorter ones are drawn as they are
_WINDOWS = 40  # a smoothed curve shows so many independent medians


def draw_runs(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    metrics: Sequence[str],
    path: str | os.PathLike,
    *,
    against: Against = "batch",
) -> str:
    """Draw metrics of several runs into one PNG. A long curve is drawn faintly, with its running median over it.

    Args:
        runs: Records of each run as `read_metrics` gives them, by what the legend calls it.
        metrics: A panel for each.
        path: The PNG to write.
        against: The horizontal axis.

    Returns:
        The absolute path.

    Raises:
        ValueError: If no run has a finite value of one of the metrics.
    """
    curves = {metric: {name: curve(records, metric, against) for name, records in runs.items()} for metric in metrics}
    for metric, found in curves.items():
        if not any(len(values) for _, values in found.values()):
            raise ValueError(f"no run has a finite value of {metric!r}")
    figure, panels = axes((7.5, 1.2 + 2.8 * len(metrics)), len(metrics))
    for panel, (metric, found) in zip(panels, curves.items(), strict=True):
        for number, (name, (places, values)) in enumerate(found.items()):
            _draw(panel, places, values, name, COLORS[number % len(COLORS)])
        panel.set_ylabel(metric, color=INK)
        use_log_if_wide(panel, np.concatenate([values for _, values in found.values()]))
    panels[0].legend(frameon=False, fontsize="small")
    panels[-1].set_xlabel(against)
    return write_png(figure, path)


def curve(records: Sequence[Mapping[str, Any]], metric: str, against: Against = "batch") -> tuple[np.ndarray, np.ndarray]:
    """Places and values of one metric, `(count,)` each, without what is missing or not finite."""
    points = [(record[against], record[metric]) for record in records if record.get(metric) is not None]
    places, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return places, values


def running_median(values: np.ndarray, window: int) -> np.ndarray:
    """Median over a centred window, of what there is of it at the ends; a single spike does not show.

    Args:
        values: `(count,)`.
        window: Odd.
    """
    half = window // 2
    return np.array([np.median(values[max(at - half, 0) : at + half + 1]) for at in range(len(values))])


def _draw(panel: Any, places: np.ndarray, values: np.ndarray, name: str, color: str) -> None:
    if len(values) < _SMOOTHED_FROM:
        panel.plot(places, values, color=color, marker="o", markersize=3, linewidth=1.1, label=name)
        return
    panel.plot(places, values, color=color, alpha=0.25, linewidth=0.7)
    panel.plot(places, running_median(values, 2 * (len(values) // _WINDOWS) + 1), color=color, linewidth=1.4, label=name)
