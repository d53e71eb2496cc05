"""The schedule of the first Transformer: a linear rise, then a fall with the inverse square root of the count."""

from torch import Tensor

from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE, check_numbers
from ..core.schedule import Schedule, as_count
from .joining import join
from .powers import linear


def inverse_sqrt(peak_value: float, warmup_steps: float, init_value: float = 0.0, timescale: float | None = None) -> Schedule:
    """Rise to `peak_value` over `warmup_steps`, then fall as `peak * sqrt(timescale / (timescale + count - warmup_steps))`.

    With the default timescale this is `peak * sqrt(warmup_steps / count)` after the warm-up. It has no end.

    Args:
        peak_value: Value after the warm-up; finite.
        warmup_steps: Length of the rise, in counts. Not negative.
        init_value: Value at count 0; finite.
        timescale: Counts after the warm-up at which the value has fallen to `peak / sqrt(2)`. Positive; `warmup_steps` (at least 1) by
            default.

    Raises:
        ValueError: If `warmup_steps` is negative or `timescale` is not positive.

    Reference:
        Vaswani et al., "Attention is all you need", 2017, eq. 3. arXiv:1706.03762
    """
    check_numbers("inverse_sqrt", FINITE, peak_value=peak_value, init_value=init_value)
    check_numbers("inverse_sqrt", NOT_NEGATIVE, warmup_steps=warmup_steps)
    if timescale is not None:
        check_numbers("inverse_sqrt", POSITIVE, timescale=timescale)
    scale = max(warmup_steps, 1) if timescale is None else timescale

    def fall(count: Tensor | int) -> Tensor:
        return peak_value * (1 + as_count(count) / scale).rsqrt()

    return join([linear(init_value, peak_value, warmup_steps), fall], [warmup_steps])
