"""One picture of what is in a store."""

import os

from .inspection import Inspection


def draw_inspection(found: Inspection, path: str | os.PathLike) -> None:
    """Write the distributions, the elements and the coverage of labels as one PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import; no window is opened, no global figure made
    from matplotlib.figure import Figure

    panels = len(found.histograms) + 2
    figure = Figure(figsize=(10, 2.6 * ((panels + 1) // 2)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots((panels + 1) // 2, 2, squeeze=False).flat)
    figure.suptitle(f"{found.num_frames} frames, {found.num_atoms} atoms")
    for axis, (name, histogram) in zip(axes, found.histograms.items(), strict=False):
        axis.stairs(histogram.counts, histogram.edges, fill=True)
        axis.axvline(histogram.median, color="black", linewidth=1)
        axis.set(title=name, xlabel=histogram.unit, ylabel="count")
    elements, coverage, *unused = axes[len(found.histograms) :]
    elements.bar(list(found.elements), list(found.elements.values()))
    elements.set(title="elements", ylabel="atoms")
    coverage.barh(list(found.coverage), [100 * count / found.num_frames for count in found.coverage.values()])
    coverage.set(title="labels", xlabel="% of frames", xlim=(0, 100))
    for axis in unused:
        axis.set_axis_off()
    figure.savefig(path, format="png", dpi=110)
