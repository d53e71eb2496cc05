"""The picture of a learning-rate range test."""

from .lr_range import CEILING, RangeTest, Suggestion


def draw_range_test(test: RangeTest, suggestion: Suggestion | None, path: str) -> str:
    """Draw loss against learning rate as one PNG; the absolute path."""
    import numpy as np

    from ..reporting.canvas import COLORS, FAINT, axes, use_log_if_wide, write_png

    figure, (panel,) = axes((6.5, 4.0))
    panel.plot(test.rates, test.losses, color=COLORS[0], alpha=0.3, linewidth=0.8, label="single batches")
    panel.plot(test.rates, test.means, color=COLORS[0], linewidth=1.6, label="running mean")
    if suggestion is not None:
        panel.axvline(suggestion.steepest, color=COLORS[1], linewidth=1, label=f"falls fastest, {suggestion.steepest:.2g}")
        panel.axvline(suggestion.least, color=FAINT, linewidth=1, label=f"least, {suggestion.least:.2g}")
    panel.set_xscale("log")
    shown = np.minimum(test.losses, CEILING * max(test.losses[0], min(test.losses)))
    use_log_if_wide(panel, shown)
    margin = 0.05 * (shown.max() - shown.min()) or 1.0
    panel.set_ylim(0.9 * shown.min() if shown.min() > 0 else shown.min() - margin, shown.max() + margin)
    panel.set_xlabel("learning rate")
    panel.set_ylabel("loss")
    panel.legend(frameon=False, fontsize="small")
    return write_png(figure, path)
