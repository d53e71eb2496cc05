"""Differential privacy: clip the gradient of each example, add noise, average."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .moments import widen
from .per_example import per_example_global_norm_clip


class DifferentiallyPrivateAggregateState(NamedTuple):
    """State of `differentially_private_aggregate`."""

    count: Tensor  # 0-d int64, updates so far
    rng_key: Tensor  # 0-d int64


def differentially_private_aggregate(l2_norm_clip: float, noise_multiplier: float, key: int = 0) -> GradientTransform:
    """Average per-example gradients so that no example shows: `u <- (sum of clipped gradients + noise) / batch size`.

    Stands first in a chain. Updates come in with a batch dimension in front, as `torch.func.vmap` of a gradient gives them, and go
    on without.

    Args:
        l2_norm_clip: Largest joint norm of one example's gradient. Positive.
        noise_multiplier: Deviation of the Gaussian noise, in units of `l2_norm_clip`. Not negative.
        key: Start of the random stream, a whole number. It is a secret.

    Reference:
        Abadi et al., "Deep learning with differential privacy", 2016, Algorithm 1. arXiv:1607.00133. The generator is not a
        cryptographic one.
    """
    check_numbers("differentially_private_aggregate", POSITIVE, l2_norm_clip=l2_norm_clip)
    check_numbers("differentially_private_aggregate", NOT_NEGATIVE, noise_multiplier=noise_multiplier)
    check_whole("differentially_private_aggregate", FINITE, key=key)

    def init(params: Tree) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(scalar_like(params, 0, torch.int64), scalar_like(params, key, torch.int64))

    def update(
        updates: Tree, state: DifferentiallyPrivateAggregateState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, DifferentiallyPrivateAggregateState]:
        examples = tree.leaves(updates)
        batch = examples[0].shape[0] if examples and examples[0].ndim else 1
        total = per_example_global_norm_clip(updates, l2_norm_clip)[0] if examples else updates
        leaves, structure = tree.flatten(total)
        own = rng.fold_in(state.rng_key, state.count)
        deviation = l2_norm_clip * noise_multiplier
        noisy = [(u + deviation * rng.normal(own, draw, u.shape, u.dtype)) / batch for draw, u in enumerate(widen(leaves))]
        return tree.unflatten(structure, noisy), DifferentiallyPrivateAggregateState(state.count + 1, state.rng_key)

    return GradientTransform(init, update, "differentially_private_aggregate")
