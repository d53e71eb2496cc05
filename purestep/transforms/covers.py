"""SM3: bound each element's squares by one number for each of its rows, columns and so on."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, FRACTION, NOT_NEGATIVE, check_numbers
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .moments import decay_mean, widen, zeros_of_moments


class ScaleBySm3State(NamedTuple):
    """State of `scale_by_sm3`."""

    mu: list[tuple[Tensor, ...]]  # for each leaf a bound along each dimension; of its own shape if it has fewer than two
    nu: Tree  # running mean of scaled updates


def scale_by_sm3(b1: float = 0.9, b2: float = 1.0, eps: float = 1e-8) -> GradientTransform:
    """Divide by the root of summed squares, of which only largest values along each dimension are kept.

        v = min over dimensions of mu + u^2;    m <- b1 m + (1 - b1) u / sqrt(v + eps);    mu_i <- max of v over the other dimensions

    Args:
        b1: Decay of the mean of results, in [0, 1).
        b2: 1 sums squares; below 1, down to 0, it takes running means.
        eps: Added inside the root, in the units of squared updates. Not negative.

    Reference:
        Anil et al., "Memory-efficient adaptive optimization", 2019, Algorithm SM3-II. arXiv:1901.11150
    """
    check_numbers("scale_by_sm3", DECAY, b1=b1)
    check_numbers("scale_by_sm3", FRACTION, b2=b2)
    check_numbers("scale_by_sm3", NOT_NEGATIVE, eps=eps)
    share = 1.0 if isinstance(b2, int | float) and b2 == 1.0 else 1.0 - b2

    def init(params: Tree) -> ScaleBySm3State:
        zeros = tree.leaves(zeros_of_moments(params))
        if any(z.is_complex() for z in zeros):
            raise ValueError("scale_by_sm3: complex leaves have no largest value; wrap it in split_real_and_imaginary")
        return ScaleBySm3State([_bounds(z) for z in zeros], zeros_of_moments(params))

    def update(updates: Tree, state: ScaleBySm3State, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleBySm3State]:
        leaves, structure = tree.flatten(updates)
        wide = widen(leaves)
        sums = [share * u * u + b2 * _cover(u, bounds) for u, bounds in zip(wide, state.mu, strict=True)]
        scaled = [torch.where(v > 0, u * (v + eps).rsqrt(), 0.0) for u, v in zip(wide, sums, strict=True)]
        nu = tree.unflatten(structure, decay_mean(tree.leaves(state.nu), scaled, b1))
        return tree.clone(nu), ScaleBySm3State([_bounds(v) for v in sums], nu)

    return GradientTransform(init, update, "scale_by_sm3")


def _bounds(sums: Tensor) -> tuple[Tensor, ...]:
    """The largest element along each dimension."""
    if sums.ndim < 2:
        return (sums,)
    if sums.numel() == 0:
        return tuple(sums.new_zeros(size) for size in sums.shape)
    return tuple(sums.amax([d for d in range(sums.ndim) if d != kept]) for kept in range(sums.ndim))


def _cover(leaf: Tensor, bounds: tuple[Tensor, ...]) -> Tensor:
    """The least of the bounds that hold for each element."""
    if leaf.ndim < 2:
        return bounds[0]
    shaped = [bound.view([-1 if d == kept else 1 for d in range(leaf.ndim)]) for kept, bound in enumerate(bounds)]
    return functools.reduce(torch.minimum, shaped)
