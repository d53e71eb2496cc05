"""A running mean of updates as an estimate of the next one: corrected for its start, and looking ahead."""

from torch import Tensor

from . import leafwise
from .leafwise import Leaves
from .moments import bias_correction


def corrected_mean(mu: Leaves, updates: Leaves, decay: float | Tensor, count: Tensor, nesterov: bool) -> Leaves:
    """`m / (1 - b^t)`, and with Nesterov `b m / (1 - b^(t+1)) + (1 - b) u / (1 - b^t)`.

    Args:
        mu: The mean, with `updates` in it.
        updates: The latest ones.
        count: Number of updates in the mean, at least 1.
    """
    if not nesterov:
        return leafwise.div(mu, bias_correction(decay, count))
    ahead = leafwise.mul(mu, decay / bias_correction(decay, count + 1))
    return leafwise.add(ahead, leafwise.mul(updates, (1 - decay) / bias_correction(decay, count)))
