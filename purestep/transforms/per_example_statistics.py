"""From gradients of single examples to one update, and how much they differ: `average_per_element_updates`, `add_mean_variance_to_opt`.

Here updates have batch dimensions that parameters lack, so these stand first in a chain. (optax keeps them in its experimental part;
its `process` is `chain`, its `accumulate_avg_updates` is `accumulate`.)
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from . import leafwise
from .moments import bias_correction, decay_mean, widen, zeros_of_moments

Axes = int | Sequence[int]


def average_per_element_updates(per_elt_axis: Axes = 0) -> GradientTransform:
    """Replace updates of single examples by their mean.

    Args:
        per_elt_axis: The batch dimension, or several.

    Reference:
        optax 0.2.8 `experimental.aggregating.average_per_element_updates`.
    """
    return stateless(lambda updates, params: tree.map(lambda u: u.mean(dim=_dims(per_elt_axis)), updates), "average_per_element_updates")


class MeanVarianceState(NamedTuple):
    """State of `add_mean_variance_to_opt`."""

    updates_so_far: Tensor  # 0-d int64
    mean_ema: Tree  # running mean of the batches' means
    variance_ema: Tree  # running mean of the batches' unbiased variances
    inner_state: Any


def add_mean_variance_to_opt(opt: GradientTransform, ema_decay: float = 0.9, per_elt_axis: Axes = 0) -> GradientTransform:
    """Hand the mean over examples to `opt`, and keep running means of it and of the variance between examples.

    Args:
        opt: What the mean is for.
        ema_decay: Of the running means, in [0, 1).
        per_elt_axis: The batch dimension, or several, of at least two examples together.

    Reference:
        optax 0.2.8 `experimental.aggregating.add_mean_variance_to_opt`.
    """
    check_numbers("add_mean_variance_to_opt", DECAY, ema_decay=ema_decay)
    dims = _dims(per_elt_axis)

    def init(params: Tree) -> MeanVarianceState:
        return MeanVarianceState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_moments(params), opt.init(params))

    def update(updates: Tree, state: MeanVarianceState, params: Tree = None, **extra: Any) -> tuple[Any, MeanVarianceState]:
        leaves, structure = tree.flatten(updates)
        if few := [path for path, u in tree.items(updates) if math.prod([u.shape[dim] for dim in dims]) < 2]:
            raise ValueError(f"add_mean_variance_to_opt: a variance needs two examples, update {few[0]!r} has fewer in dimensions {dims}")
        wide = widen(leaves)
        mean, variance = [u.mean(dim=dims) for u in wide], [_variance(u, dims) for u in wide]
        averages = (tree.leaves(state.mean_ema), mean), (tree.leaves(state.variance_ema), variance)
        new = [tree.unflatten(structure, decay_mean(old, now, ema_decay)) for old, now in averages]
        out, inner = opt.update(tree.unflatten(structure, mean), state.inner_state, params, **extra)
        return out, MeanVarianceState(state.updates_so_far + 1, *new, inner)

    return GradientTransform(init, update, "add_mean_variance_to_opt", opt.needs)


def get_unbiased_mean_and_variance_ema(state: MeanVarianceState, ema_decay: float = 0.9) -> tuple[Tree, Tree]:
    """The two running means of `add_mean_variance_to_opt`, corrected for their start at 0; trees like the parameters.

    Args:
        state: After at least one update.
        ema_decay: As given there.
    """
    correction = bias_correction(ema_decay, state.updates_so_far)

    def corrected(average: Tree) -> Tree:
        leaves, structure = tree.flatten(average)
        return tree.unflatten(structure, leafwise.div(leaves, correction))

    return corrected(state.mean_ema), corrected(state.variance_ema)


def _variance(u: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The unbiased variance; `Tensor.var` warns of leaves without elements."""
    distance = u - u.mean(dim=dims, keepdim=True)
    return distance.square().sum(dim=dims) / (math.prod([u.shape[dim] for dim in dims]) - 1)


def _dims(axes: Axes) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)
