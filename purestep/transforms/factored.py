"""Adafactor's second moments, kept as one row and one column per matrix: `scale_by_factored_rms`."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, NOT_NEGATIVE, at_least, check_numbers, check_schedulable, check_whole
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .adam_variants import Convention, check_convention
from .block_norms import block_rms
from .moments import magnitude_squared, real_dtype, widen
from .parameters import wide_params


class FactoredState(NamedTuple):
    """State of `scale_by_factored_rms`; a leaf that is factored has an empty `v`, any other an empty row and column."""

    count: Tensor  # 0-d int64, updates so far
    v_row: Tree  # mean of squares over the larger dimension
    v_col: Tree  # mean of squares over the smaller dimension
    v: Tree  # running mean of squares


def factored_dims(shape: tuple[int, ...], min_dim_size_to_factor: int, convention: Convention) -> tuple[int, int] | None:
    """The two dimensions that are averaged for the column and for the row, or None if the leaf is not factored.

    optax takes the two largest if the smaller has at least `min_dim_size_to_factor` elements; torch the last two of any leaf.
    """
    if len(shape) < 2:
        return None
    if convention == "torch":
        return len(shape) - 2, len(shape) - 1
    *_, second, first = sorted(range(len(shape)), key=lambda dim: (shape[dim], dim))
    return None if shape[second] < min_dim_size_to_factor else (second, first)


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: float = 1e-30,
    *,
    convention: Convention = "optax",
) -> GradientTransform:
    """Divide by the root of a running mean of squares that is the outer product of a row and a column.

        beta = 1 - t^-decay_rate;   row <- beta row + (1 - beta) mean_columns(u^2 + epsilon);   col likewise over rows
        u <- u / sqrt(row col / mean(row))

    Args:
        factored: False keeps every square.
        decay_rate: Exponent of the growing memory. Not negative.
        step_offset: Number of updates that do not count; `t` is at least 1.
        min_dim_size_to_factor: Matrices with a smaller side keep every square; a whole number.
        epsilon: Added to the squares; with "torch" the floor of the estimate's root, and of the mean of the rows. Not negative.
        convention: "torch" factors the last two dimensions of every leaf that has them, as `torch.optim.Adafactor` does.

    Reference:
        Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018, Algorithm 4. arXiv:1804.04235
    """
    check_numbers("scale_by_factored_rms", NOT_NEGATIVE, decay_rate=decay_rate, epsilon=epsilon)
    check_whole("scale_by_factored_rms", FINITE, step_offset=step_offset)
    check_whole("scale_by_factored_rms", at_least(0), min_dim_size_to_factor=min_dim_size_to_factor)
    check_convention("scale_by_factored_rms", convention)

    def dims_of(leaf: Tensor) -> tuple[int, int] | None:
        return factored_dims(tuple(leaf.shape), min_dim_size_to_factor, convention) if factored else None

    def zeros(leaf: Tensor, shape: Sequence[int]) -> Tensor:
        return leaf.new_zeros(tuple(shape), dtype=real_dtype(leaf.dtype))

    def mean_over(which: int, leaf: Tensor) -> Tensor:
        dims = dims_of(leaf)
        return zeros(leaf, [0] if dims is None else [size for i, size in enumerate(leaf.shape) if i != dims[which]])

    def init(params: Tree) -> FactoredState:
        row, col = (tree.map(functools.partial(mean_over, which), params) for which in (1, 0))
        whole = tree.map(lambda p: zeros(p, p.shape if dims_of(p) is None else [0]), params)
        return FactoredState(scalar_like(params, 0, torch.int64), row, col, whole)

    def one_leaf(u: Tensor, row: Tensor, col: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (squares,) = magnitude_squared([u])
        added = epsilon if convention == "optax" else 0.0
        kept, fresh, dims = decay.to(squares.dtype), (1.0 - decay).to(squares.dtype), dims_of(u)
        if dims is None:
            v = kept * v + fresh * (squares + added)
            return u * _inverse_root(v, epsilon, convention), row, col, v
        small, large = dims
        row = kept * row + fresh * (_mean(squares, large) + added)
        col = kept * col + fresh * (_mean(squares, small) + added)
        mean = _mean(row, small - 1 if small > large else small, keepdim=True)
        if convention == "torch":
            estimate = row.unsqueeze(large) * col.unsqueeze(small) / mean.clamp(min=epsilon).unsqueeze(large)
            return u * _inverse_root(estimate, epsilon, convention), row, col, v
        return u * (row / mean).rsqrt().unsqueeze(large) * col.rsqrt().unsqueeze(small), row, col, v

    def update(updates: Tree, state: FactoredState, params: Tree = None, **extra: Any) -> tuple[Tree, FactoredState]:
        leaves, structure = tree.flatten(updates)
        # optax takes this power in float32, torch in double precision; each is followed to the last bit
        time = (state.count + 1 - step_offset).clamp(min=1).to(torch.float32 if convention == "optax" else torch.float64)
        decay = 1.0 - torch.pow(time, torch.zeros_like(time) - decay_rate)
        parts = zip(widen(leaves), *(tree.leaves(part) for part in (state.v_row, state.v_col, state.v)), strict=True)
        results = [one_leaf(u, row, col, v, decay) for u, row, col, v in parts]
        out, row, col, v = (tree.unflatten(structure, [result[i] for result in results]) for i in range(4))
        return out, FactoredState(state.count + 1, row, col, v)

    return GradientTransform(init, update, "scale_by_factored_rms")


def _mean(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return x.sum(dim, keepdim=keepdim) / max(x.shape[dim], 1)


def _inverse_root(squares: Tensor, epsilon: float, convention: Convention) -> Tensor:
    return (squares.clamp(min=epsilon**2) if convention == "torch" else squares).rsqrt()


class RelativeStepState(NamedTuple):
    """State of `scale_by_relative_step`."""

    count: Tensor  # 0-d int64, updates so far
    learning_rate: Hyperparam

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The learning rate before it is made relative."""
        return {"lr": self.learning_rate.value}


def scale_by_relative_step(learning_rate: ScalarOrSchedule, weight_decay: float = 0.0, min_scale: float = 1e-3) -> GradientTransform:
    """Steps of torch's Adafactor: `u <- -max(min_scale, rms(p)) min(learning_rate, 1 / sqrt(t)) u - learning_rate weight_decay p`.

    Args:
        learning_rate: Largest relative step; number or schedule.
        weight_decay: Decoupled decay; unlike the step it is not relative. Not negative.
        min_scale: Smallest scale of a leaf, in the units of the parameters. Not negative.

    Reference:
        `torch.optim.Adafactor` of torch 2.13. Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018,
        section 8 (relative steps). arXiv:1804.04235
    """
    check_schedulable("scale_by_relative_step", FINITE, learning_rate=learning_rate)
    check_numbers("scale_by_relative_step", NOT_NEGATIVE, weight_decay=weight_decay, min_scale=min_scale)

    def init(params: Tree) -> RelativeStepState:
        return RelativeStepState(scalar_like(params, 0, torch.int64), init_hyperparam(learning_rate, params))

    def update(updates: Tree, state: RelativeStepState, params: Tree = None, **extra: Any) -> tuple[Tree, RelativeStepState]:
        rate, count = next_hyperparam(learning_rate, state.learning_rate), state.count + 1
        relative = torch.minimum(rate.value, count.double().rsqrt())
        leaves, structure = tree.flatten(updates)

        def step(u: Tensor, p: Tensor) -> Tensor:
            return -(block_rms(p, min_scale) * relative.to(p.dtype)) * u - (rate.value * weight_decay).to(p.dtype) * p

        out = [step(u, p) for u, p in zip(widen(leaves), wide_params(params, "scale_by_relative_step"), strict=True)]
        return tree.unflatten(structure, out), RelativeStepState(count, rate)

    return GradientTransform(init, update, "scale_by_relative_step")
