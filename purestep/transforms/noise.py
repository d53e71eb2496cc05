"""Random updates on purpose: `add_noise`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.ranges import FINITE, NOT_NEGATIVE, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .moments import widen


class AddNoiseState(NamedTuple):
    """State of `add_noise`."""

    count: Tensor  # 0-d int64, updates so far
    rng_key: Tensor  # 0-d int64


def add_noise(eta: float, gamma: float, key: int = 0) -> GradientTransform:
    """Add Gaussian noise whose variance falls as a power of the number of updates: `u <- u + N(0, eta / t^gamma)`.

    Args:
        eta: Variance at the first update, in the units of squared updates. Not negative.
        gamma: Exponent of its decay. Not negative; the paper has 0.55.
        key: Start of the random stream, any whole number; the same key gives the same noise.

    Reference:
        Neelakantan et al., "Adding gradient noise improves learning for very deep networks", 2015, equation 1. arXiv:1511.06807
    """
    check_numbers("add_noise", NOT_NEGATIVE, eta=eta, gamma=gamma)
    check_whole("add_noise", FINITE, key=key)

    def init(params: Tree) -> AddNoiseState:
        return AddNoiseState(scalar_like(params, 0, torch.int64), scalar_like(params, key, torch.int64))

    def update(updates: Tree, state: AddNoiseState, params: Tree = None, **extra: Any) -> tuple[Tree, AddNoiseState]:
        leaves, structure = tree.flatten(updates)
        count = state.count + 1
        deviation = torch.sqrt(eta * torch.exp(-gamma * torch.log(count.double())))
        own = rng.fold_in(state.rng_key, count)
        noisy = [u + deviation.to(u.dtype) * rng.normal(own, draw, u.shape, u.dtype) for draw, u in enumerate(widen(leaves))]
        return tree.unflatten(structure, noisy), AddNoiseState(count, state.rng_key)

    return GradientTransform(init, update, "add_noise")
