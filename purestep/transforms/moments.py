"""Running means of updates and of their squares: dtypes, decay and bias correction, as every adaptive transform needs them.

Arithmetic is float32 or wider whatever the dtype of the parameters, so that `b2=0.999` acts as 0.999 on bfloat16 leaves too.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree
from . import leafwise
from .leafwise import Leaves

NARROW = frozenset({torch.bfloat16, torch.float16})
"""Dtypes that are widened to float32 before anything is computed."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on leaves of `dtype` is done in: itself, but at least float32."""
    return torch.float32 if dtype in NARROW else dtype


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of magnitudes: `wide_dtype`, and real for a complex one."""
    wide = wide_dtype(dtype)
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(wide, wide)


def zeros_of_moments(params: Tree, dtype: torch.dtype | None = None) -> Tree:
    """Zeros of the shapes of `params`, of `dtype` or else float32 and wider."""
    return tree.map(lambda p: torch.zeros_like(p, dtype=dtype or wide_dtype(p.dtype)), params)


def zeros_of_squares(params: Tree) -> Tree:
    """Zeros for squared magnitudes: real, float32 or wider."""
    return tree.map(lambda p: torch.zeros_like(p, dtype=real_dtype(p.dtype)), params)


def widen(updates: Sequence[Tensor]) -> Leaves:
    """The leaves as float32 or wider; those that are so already stay the same objects."""
    return [u.float() if u.dtype in NARROW else u for u in updates]


def decay_mean(mean: Leaves, updates: Leaves, decay: float | Tensor) -> Leaves:
    """`decay m + (1 - decay) u`, with wide `updates`; a mean stored in a narrower dtype is widened first."""
    return leafwise.lerp(leafwise.cast(mean, [u.dtype for u in updates]), updates, 1 - decay)


def decay_squares(squares: Leaves, updates: Leaves, decay: float | Tensor) -> Leaves:
    """`decay v + (1 - decay) |u|^2`."""
    return leafwise.lerp(squares, magnitude_squared(updates), 1 - decay)


def magnitude_squared(updates: Leaves) -> Leaves:
    """`|u|^2`, real."""
    if any(u.is_complex() for u in updates):
        return [(u * u.conj()).real if u.is_complex() else u * u for u in updates]
    return leafwise.mul(updates, updates)


def power(base: float | Tensor, count: Tensor) -> Tensor:
    """`base^count`, 0-d float64."""
    if isinstance(base, Tensor):
        return torch.exp(count.double() * torch.log(base))
    return torch.exp(count.double() * math.log(base)) if base > 0 else torch.zeros_like(count, dtype=torch.float64)


def bias_correction(decay: float | Tensor, count: Tensor) -> Tensor:
    """`1 - decay^count`, 0-d float64, exact to the last bit for counts of any size.

    Args:
        decay: In [0, 1).
        count: Number of values in the mean, at least 1.
    """
    if isinstance(decay, Tensor):
        return -torch.expm1(count.double() * torch.log(decay))
    return -torch.expm1(count.double() * math.log(decay)) if decay > 0 else torch.ones_like(count, dtype=torch.float64)
