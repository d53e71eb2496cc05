"""Pictures of a run as PNG: curves of its log, predictions against the truth. Nothing here touches pyplot or its global state."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.schedule import Schedule

_INK, _FIRST, _SECOND, _FAINT = "#333333", "#1f6fb4", "#d9651b", "#9a9a9a"
_SHARP = 150  # dots per inch


def learning_curves(records: Sequence[Mapping[str, Any]], path: str | os.PathLike, *, title: str = "Learning curve") -> str:
    """Draw loss, validated loss and learning rate against the batches.

    Args:
        records: Lines of a log, as `read_metrics` gives them.
        path: The PNG to write.
        title: Above the picture.

    Returns:
        The absolute path.

    Raises:
        ValueError: If there is no record of training.
    """
    training = _series(records, "train", "loss/total")
    if not len(training[0]):
        raise ValueError("learning_curves: no record of kind 'train' has a finite 'loss/total'")
    rate_name = next((name for record in records for name in record if name.endswith("/lr")), "")
    figure, (loss, rate) = _figure((7.0, 5.2), nrows=2, sharex=True, height_ratios=(3, 1))
    loss.plot(*training, color=_FIRST, linewidth=0.9, label="training, single batches")
    loss.plot(*_series(records, "validation", "validation/loss/total"), color=_SECOND, marker="o", markersize=3.5, label="validation")
    loss.set_yscale("log")
    _plain_ticks(loss)
    loss.set_ylabel("loss")
    loss.set_title(title, loc="left", color=_INK)
    loss.legend(frameon=False)
    rate.plot(*_series(records, "train", rate_name), color=_FAINT)
    rate.set_ylabel("learning rate")
    rate.set_xlabel("batch")
    rate.set_ylim(bottom=0)
    return _write(figure, path)


def sample_schedule(schedule: Schedule, num_steps: int, *, num_points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Counts of a run and the values of a schedule there.

    Args:
        schedule: From a count to a value, as those of `purestep.schedules`.
        num_steps: Updates of the run; the last one is at count `num_steps - 1`.
        num_points: At most so many, evenly spread.
    """
    counts = np.unique(np.linspace(0, num_steps - 1, min(num_points, num_steps)).round().astype(np.int64))
    return counts, np.array([float(schedule(count)) for count in counts.tolist()])


def schedule_preview(curve: tuple[np.ndarray, np.ndarray], path: str | os.PathLike, *, title: str = "Learning rate") -> str:
    """Draw a schedule before the run.

    Args:
        curve: Counts and values, from `sample_schedule`.
        path: The PNG to write.
        title: Above the picture.

    Returns:
        The absolute path.
    """
    counts, values = curve
    figure, axis = _figure((7.0, 2.6))
    axis.plot(counts, values, color=_FIRST)
    top = int(values.argmax())
    text = f"begins at {values[0]:.3g}, largest {values[top]:.3g} at step {counts[top]:,}, ends at {values[-1]:.3g}"
    axis.set_title(f"{title}: {text}" if title else text, loc="left", fontsize="small", color=_INK)
    axis.set(xlabel="step", ylabel="learning rate", ylim=(min(0.0, float(values.min())), None))
    return _write(figure, path)


def parity(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], path: str | os.PathLike, *, title: str = "Predicted against true") -> str:
    """Draw predictions against the truth, one panel for each quantity; a perfect model lies on the diagonal.

    Args:
        panels: `(true, predicted)` by what stands on the axes, quantity and unit.
        path: The PNG to write.
        title: Above the picture.

    Returns:
        The absolute path.
    """
    figure, axes = _figure((4.2 * len(panels), 4.5), ncols=len(panels), squeeze=False)
    for panel, (name, (true, predicted)) in zip(axes[0], panels.items(), strict=True):
        error = np.abs(predicted - true).mean()
        low, high = (float(side) for side in (min(true.min(), predicted.min()), max(true.max(), predicted.max())))
        edge = 0.05 * (high - low) or 1.0
        panel.plot([low - edge, high + edge], [low - edge, high + edge], color=_FAINT, linewidth=0.8)
        panel.plot(true, predicted, ".", color=_FIRST, markersize=5, alpha=0.35, markeredgewidth=0, rasterized=True)
        panel.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge), aspect="equal")
        panel.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
        panel.set_title(f"mean absolute error {error:.3g}, {len(true):,} values", loc="left", fontsize="small", color=_INK)
    figure.suptitle(title, color=_INK)
    return _write(figure, path)


def error_histograms(errors: Mapping[str, np.ndarray], path: str | os.PathLike, *, unit: str = "", title: str = "Errors by element") -> str:
    """Draw a histogram of errors for each element, all over the same range; counts are logarithmic, so that tails show.

    Args:
        errors: Predicted minus true, by what stands above each panel; see `CollectPredictions.errors_by_element`.
        path: The PNG to write.
        unit: Of the errors.
        title: Above the picture.

    Returns:
        The absolute path.

    Raises:
        ValueError: If there are no errors.
    """
    finite = {name: values[np.isfinite(values)] for name, values in ((name, np.ravel(values)) for name, values in errors.items())}
    finite = {name: values for name, values in finite.items() if len(values)}
    if not finite:
        raise ValueError("error_histograms: there are no finite errors to draw")
    columns = min(len(finite), 4)
    rows = -(-len(finite) // columns)
    figure, axes = _figure((3.2 * columns, 2.6 * rows + 0.4), nrows=rows, ncols=columns, squeeze=False, sharex=True)
    edge = max(float(np.abs(values).max()) for values in finite.values()) or 1.0
    for axis in np.ravel(axes)[len(finite) :]:
        axis.set_visible(False)
    for axis, (name, values) in zip(np.ravel(axes), finite.items(), strict=False):
        axis.hist(values, bins=np.linspace(-edge, edge, 41), color=_FIRST, log=True)
        mean, square = np.abs(values).mean(), np.sqrt((values**2).mean())
        text = f"{name}: {len(values):,} values\nmean absolute {mean:.3g}, root mean square {square:.3g}"
        axis.set_title(text, loc="left", fontsize="small", color=_INK)
    figure.supxlabel(f"predicted - true {unit}".rstrip(), fontsize="small")
    figure.suptitle(title, color=_INK)
    return _write(figure, path)


def _figure(size: tuple[float, float], **grid: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # a third of a second, which only those who draw should wait for

    ratios = {"height_ratios": grid.pop("height_ratios")} if "height_ratios" in grid else {}
    figure = Figure(figsize=size, layout="constrained", dpi=_SHARP)
    axes = figure.subplots(gridspec_kw=ratios, **grid)
    for axis in np.ravel(axes):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e6e6e6", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers, few enough not to touch each other."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _series(records: Sequence[Mapping[str, Any]], kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Batches and values of one metric, without what is missing or not finite."""
    points = [(record["batch"], record[name]) for record in records if record["kind"] == kind and record.get(name) is not None]
    batches, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return batches, values


def _write(figure: Any, path: str | os.PathLike) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    whole = os.path.abspath(os.fspath(path))
    FigureCanvasAgg(figure).print_png(whole)
    return whole
