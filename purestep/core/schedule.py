"""What a schedule is: a pure function of a count; and how a hyperparameter is kept in a state.

`schedules/` holds the schedules themselves.
"""

import math
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from . import tree

Schedule = Callable[[Tensor | int], Tensor]
ScalarOrSchedule = float | Tensor | Schedule


def as_count(count: Tensor | int) -> Tensor:
    """The count as a float64 0-d tensor, on the device it is on."""
    if isinstance(count, Tensor):
        return count.to(torch.float64)
    return torch.tensor(float(count), dtype=torch.float64)


def scalar_like(params: tree.Tree, value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """A 0-d tensor on the device of the first leaf of `params` (the CPU if there is none)."""
    leaves = tree.leaves(params)
    return torch.full((), value, dtype=dtype, device=leaves[0].device if leaves else None)


class Hyperparam(NamedTuple):
    """A hyperparameter in a state: its value now, and the number of updates that drives it if it is scheduled.

    A constant has no number of updates: its value is an ordinary leaf, so that changing it needs no new capture.
    """

    value: Tensor  # 0-d float64: what the latest update used; before the first, what it will use
    num_updates: Tensor | tuple[()] = ()  # 0-d int64: updates so far; () and not None, which `vmap` takes for a leaf


def init_hyperparam(value: ScalarOrSchedule, params: tree.Tree) -> Hyperparam:
    """Put a number or a schedule into a state, on the device of `params`.

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is NaN.
    """
    if callable(value):
        count = scalar_like(params, 0, torch.int64)
        return Hyperparam(value(count).to(torch.float64), count)
    if isinstance(value, Tensor):
        return Hyperparam(value.detach().to(torch.float64, copy=True))
    number: object = value  # one of NumPy too
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"a hyperparameter is a number, a 0-d tensor or a schedule, got {value!r}")
    if math.isnan(number):
        raise ValueError("a hyperparameter is NaN; give a number")
    return Hyperparam(scalar_like(params, float(number)))


def next_hyperparam(value: ScalarOrSchedule, state: Hyperparam) -> Hyperparam:
    """The state after one update; its `value` is what this update uses (`schedule(count before the update)`, or a given tensor)."""
    if callable(value):
        count = state.num_updates
        assert isinstance(count, Tensor), "a state made for a number was given to a schedule"
        return Hyperparam(value(count).to(torch.float64), count + 1)
    return Hyperparam(value.to(torch.float64, copy=True)) if isinstance(value, Tensor) else state
