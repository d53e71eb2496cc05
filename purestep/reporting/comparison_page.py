"""Several runs on one page: their curves over one another, and how far each came."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from .comparison import Against, curve, draw_runs
from .webpage import Section, image, table, write_page


def write_comparison(
    path: str | os.PathLike,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    metrics: Sequence[str],
    *,
    against: Against = "batch",
    title: str = "Runs",
) -> str:
    """Write one self-contained HTML file, with a picture for each metric and a table of all of them.

    Args:
        path: The file to write; its directory is there.
        runs: Records of each run as `read_metrics` gives them, by what the page calls it.
        metrics: What to draw.
        against: The horizontal axis of the pictures.
        title: Of the page.

    Returns:
        The absolute path.

    Raises:
        ValueError: If no run has a finite value of one of the metrics.
    """
    sections: list[Section] = [("Where they stand", table(*_standing(runs, metrics)))]
    with tempfile.TemporaryDirectory() as folder:
        for place, metric in enumerate(metrics):
            picture = draw_runs(runs, [metric], os.path.join(folder, f"{place}.png"), against=against)
            sections.append((metric, image(picture, f"{metric} against the {against}: {', '.join(runs)}")))
    return write_page(path, title, sections)


def _standing(runs: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """Headings, and a row for each run: counts of its last record, latest and least value of each metric."""
    counts = ("batch", "step", "epoch")
    headings = ["run", *counts, *(f"{metric}, {which}" for metric in metrics for which in ("latest", "least"))]
    rows = []
    for name, records in runs.items():
        row: list[Any] = [name, *(max((record[count] for record in records), default=None) for count in counts)]
        for metric in metrics:
            _, values = curve(records, metric)
            row += [float(values[-1]), float(values.min())] if len(values) else [None, None]
        rows.append(row)
    return headings, rows
