"""One rise and one fall over the whole run: optax's two forms, and torch's."""

from ..core.ranges import FINITE, FRACTION, POSITIVE, check_numbers
from ..core.schedule import Schedule
from .piecewise import through


def linear_onecycle(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Rise from `peak/div_factor` to the peak, fall back, then fall to `peak/(div_factor*final_div_factor)`, on straight lines.

    Args:
        transition_steps: Of the whole cycle. Positive.
        peak_value: The peak; finite.
        pct_start: Fraction of the steps at which the peak is reached, in [0, 1].
        pct_final: Fraction of the steps at which the last fall begins; from `pct_start` to 1.
        div_factor: The peak over the first value. Positive.
        final_div_factor: The first value over the last. Positive.

    Raises:
        ValueError: If `transition_steps` is not positive or the fractions are out of order.

    Reference:
        Smith and Topin, "Super-convergence", 2018. arXiv:1708.07120. As optax's `linear_onecycle_schedule`, except that turning
        points which fall on one count are kept apart (there the second replaces the first, and one step never sees its start).
    """
    check_numbers("linear_onecycle", FINITE, peak_value=peak_value)
    check_numbers("linear_onecycle", POSITIVE, transition_steps=transition_steps, div_factor=div_factor, final_div_factor=final_div_factor)
    check_numbers("linear_onecycle", FRACTION, pct_start=pct_start, pct_final=pct_final)
    if pct_start > pct_final:
        raise ValueError(f"linear_onecycle: pct_start must be at most pct_final = {pct_final}, got {pct_start}")
    low, rise, fall = peak_value / div_factor, int(pct_start * transition_steps), int(pct_final * transition_steps)
    return through([(0, low), (rise, peak_value), (fall, low), (transition_steps, low / final_div_factor)], "linear")


def cosine_onecycle(
    transition_steps: int, peak_value: float, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> Schedule:
    """Rise from `peak/div_factor` to the peak, then fall to `peak/(div_factor*final_div_factor)`, along half cosines.

    Args:
        transition_steps: Of the whole cycle. Positive.
        peak_value: The peak; finite.
        pct_start: Fraction of the steps at which the peak is reached, in [0, 1].
        div_factor: The peak over the first value. Positive.
        final_div_factor: The first value over the last. Positive.

    Raises:
        ValueError: If `transition_steps` is not positive or `pct_start` not in [0, 1].

    Reference:
        Smith and Topin, "Super-convergence", 2018. arXiv:1708.07120. optax 0.2.8 `cosine_onecycle_schedule`, except as `linear_onecycle`
        says.
    """
    check_numbers("cosine_onecycle", FINITE, peak_value=peak_value)
    check_numbers("cosine_onecycle", POSITIVE, transition_steps=transition_steps, div_factor=div_factor, final_div_factor=final_div_factor)
    check_numbers("cosine_onecycle", FRACTION, pct_start=pct_start)
    low, rise = peak_value / div_factor, int(pct_start * transition_steps)
    return through([(0, low), (rise, peak_value), (transition_steps, low / final_div_factor)], "cosine")


def onecycle(
    total_steps: int,
    max_value: float,
    pct_start: float = 0.3,
    interpolate_type: str = "cosine",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """Rise and fall as torch's `OneCycleLR` does.

    Its turning points are fractions, one count earlier than optax's, so that the last of `total_steps` counts has the last value.

    Args:
        total_steps: Of the whole cycle. Positive; with fewer than 2 it has no end.
        max_value: The peak; finite.
        pct_start: Fraction of the steps at which the peak is reached, in [0, 1].
        interpolate_type: `"cosine"` or `"linear"`.
        div_factor: The peak over the first value. Positive.
        final_div_factor: The first value over the last. Positive.
        three_phase: Fall back to the initial value in as long as it rose, then further; else fall in one.

    Raises:
        ValueError: If an argument is out of range.

    Reference:
        `torch.optim.lr_scheduler.OneCycleLR` of torch 2.13.
    """
    check_numbers("onecycle", FINITE, max_value=max_value)
    check_numbers("onecycle", POSITIVE, total_steps=total_steps, div_factor=div_factor, final_div_factor=final_div_factor)
    check_numbers("onecycle", FRACTION, pct_start=pct_start)
    low, rise, last = max_value / div_factor, max(pct_start * total_steps - 1, 0.0), max(total_steps - 1, 1)
    points = [(0.0, low), (rise, max_value)]
    if three_phase:
        points.append((min(2 * pct_start * total_steps - 2, last), low))
    return through([*points, (last, low / final_div_factor)], interpolate_type)
