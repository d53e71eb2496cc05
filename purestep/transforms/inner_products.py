"""Sums over all leaves of a tree: inner products, absolute sums. Summed in float64, so that size and dtype of leaves do not matter."""

import torch
from torch import Tensor

from .leafwise import Leaves


def dot(xs: Leaves, ys: Leaves) -> Tensor:
    """Inner product over all leaves, real part, 0-d float64."""
    return _total([(x.conj() * y).real if x.is_complex() else x * y for x, y in zip(xs, ys, strict=True)])


def absolute_sum(xs: Leaves) -> Tensor:
    """Sum of magnitudes over all leaves, 0-d float64."""
    return _total([x.abs() for x in xs])


def _total(xs: Leaves) -> Tensor:
    sums = [x.sum(dtype=torch.float64) for x in xs]
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64)
