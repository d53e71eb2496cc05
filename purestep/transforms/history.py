"""A ring of the latest values of a scalar, and quantiles of it: what robust statistics over a running window need."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.schedule import scalar_like
from ..core.tree import Tree


class History(NamedTuple):
    """The latest values of a scalar."""

    values: Tensor  # float64, shape (window,); infinite where nothing was written yet
    count: Tensor  # 0-d int64, values written so far


def empty_history(params: Tree, window: int) -> History:
    """A history without values, on the device of `params`."""
    count = scalar_like(params, 0, torch.int64)
    return History(torch.full((window,), float("inf"), dtype=torch.float64, device=count.device), count)


def remember(history: History, value: Tensor, accept: Tensor) -> History:
    """The history with one more value where the 0-d bool `accept` holds; the oldest is overwritten."""
    position = torch.arange(history.values.shape[0], device=history.values.device)
    here = accept & (position == history.count % history.values.shape[0])
    return History(torch.where(here, value, history.values), history.count + accept)


def quantile(history: History, fraction: float) -> Tensor:
    """The value below which `fraction` of the history lies, linearly interpolated; infinite if it is empty."""
    return _quantile(history.values, history.count, fraction)


def median_and_deviation(history: History) -> tuple[Tensor, Tensor]:
    """Median, and 1.4826 times the median distance from it: the standard deviation, if the values are normal."""
    median = quantile(history, 0.5)
    distance = torch.where(history.values.isfinite(), (history.values - median).abs(), float("inf"))
    return median, 1.4826 * _quantile(distance, history.count, 0.5)


def _quantile(values: Tensor, count: Tensor, fraction: float) -> Tensor:
    filled = count.clamp(max=values.shape[0])
    ordered, _ = values.sort()
    position = fraction * (filled - 1).clamp(min=0).double()
    low = position.floor()
    below, above = (ordered.gather(0, at.long().view(1)).view(()) for at in (low, position.ceil()))
    # no product with an infinite value, which would be NaN
    return torch.where(above == below, below, below + (position - low) * (above - below))
