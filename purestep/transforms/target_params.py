"""Slowly following copies of parameters: target networks and averages, as functions of two trees."""

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree
from .moments import widen


def incremental_update(new_tensors: Tree, old_tensors: Tree, step_size: float | Tensor) -> Tree:
    """Move the old tensors towards the new: `old + step_size (new - old)`, in the dtypes of the old.

    Args:
        step_size: 1 takes the new; a Polyak average has `1 - decay`.

    Reference:
        Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
    """

    def moved(new: Tensor, old: Tensor) -> Tensor:
        wide_new, wide_old = widen([new, old])
        step = step_size.to(wide_old.dtype) if isinstance(step_size, Tensor) else step_size
        return (step * wide_new + (1 - step) * wide_old).to(old.dtype)

    return tree.map(moved, new_tensors, old_tensors)


def periodic_update(new_tensors: Tree, old_tensors: Tree, steps: Tensor | int, update_period: int) -> Tree:
    """The new tensors at every `update_period`-th step, 0 among them; the old ones else.

    Args:
        steps: Count so far; an int or a 0-d tensor.
        update_period: At least 1.

    Raises:
        ValueError: If the period is below 1.
    """
    if update_period < 1:
        raise ValueError(f"periodic_update: update_period must be at least 1, got {update_period}")

    def chosen(new: Tensor, old: Tensor) -> Tensor:
        due = torch.zeros((), dtype=torch.int64, device=old.device) + steps % update_period == 0
        return torch.where(due, new.to(old.dtype), old)

    return tree.map(chosen, new_tensors, old_tensors)
