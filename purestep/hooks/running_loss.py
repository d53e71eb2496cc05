"""Running statistics of the loss: `loss_statistics`."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook, Stage, StepContext
from ..core.ranges import DECAY, check_numbers
from ..core.schedule import scalar_like
from ..core.state import TrainState


class LossStatisticsState(NamedTuple):
    """State of `loss_statistics`; 0-d float64."""

    weight: Tensor  # sum of the weights of all losses so far, towards 1
    mean: Tensor
    variance: Tensor
    smallest: Tensor
    largest: Tensor


def loss_statistics(decay: float = 0.99, name: str = "loss_statistics") -> Hook:
    """Report exponential mean and standard deviation, and the extremes, of the total loss.

    Metrics `<name>/mean`, `<name>/std`, `<name>/min`, `<name>/max`, this batch included. Mean and deviation are free of the bias
    towards where they began. A loss that is not finite is left out.

    Args:
        decay: Of mean and variance; in [0, 1).
        name: Of the hook and its metrics.

    Reference:
        Finch, "Incremental calculation of weighted mean and variance", 2009, section 9.
    """
    check_numbers("loss_statistics", DECAY, decay=decay)

    def init(state: TrainState) -> LossStatisticsState:
        values = (0.0, 0.0, 0.0, float("inf"), float("-inf"))
        return LossStatisticsState(*(scalar_like(state.params, value) for value in values))

    def update(state: LossStatisticsState, ctx: StepContext) -> tuple[LossStatisticsState, StepContext]:
        loss = ctx.loss.total.to(torch.float64)  # type: ignore[union-attr]
        weight = 1.0 - decay * (1.0 - state.weight)
        rate = (1.0 - decay) / weight
        step = rate * (loss - state.mean)
        variance = (1.0 - rate) * (state.variance + step * (loss - state.mean))
        grown = LossStatisticsState(
            weight, state.mean + step, variance, torch.minimum(state.smallest, loss), torch.maximum(state.largest, loss)
        )
        new = tree.where(torch.isfinite(loss), grown, state)
        found = {"mean": new.mean, "std": new.variance.sqrt(), "min": new.smallest, "max": new.largest}
        return new, ctx.replace(metrics={**ctx.metrics, **{f"{name}/{key}": value for key, value in found.items()}})

    return Hook(name, frozenset({Stage.AFTER_BACKWARD}), init, update)
