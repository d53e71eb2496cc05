"""What pictures of several curves are drawn on, and how they become PNG. Nothing here touches pyplot or its global state."""

import os
from typing import Any

import numpy as np

COLORS = ("#1f6fb4", "#d9651b", "#3a9a5b", "#8a4fbf", "#c23b4e", "#7a6a4f", "#2aa6b8", "#b89a1e")
INK, FAINT = "#333333", "#9a9a9a"
_SHARP = 150  # dots per inch
_MUCH = 5.0  # beyond this ratio of the largest to the least, a logarithmic axis shows more


def axes(size: tuple[float, float], rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its panels, one under the other, with one horizontal axis.

    Args:
        size: Width and height in inches.
    """
    from matplotlib.figure import Figure  # a third of a second, which only those who draw should wait for

    figure = Figure(figsize=size, layout="constrained", dpi=_SHARP)
    panels = list(np.ravel(figure.subplots(rows, sharex=True, squeeze=False)))
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#e6e6e6", linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, panels


def use_log_if_wide(panel: Any, values: np.ndarray) -> None:
    """Make the vertical axis logarithmic, with plain numbers, if all values are positive and span much."""
    if not len(values) or values.min() <= 0 or values.max() < _MUCH * values.min():
        return
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def write_png(figure: Any, path: str | os.PathLike) -> str:
    """Write a figure; the absolute path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    whole = os.path.abspath(os.fspath(path))
    FigureCanvasAgg(figure).print_png(whole)
    return whole
