"""Bound the updates leaf by leaf or unit by unit: by root mean square, by norm, and relative to the parameters (AGC)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import LIMIT, NOT_NEGATIVE, check_numbers
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from .block_norms import block_norm, block_rms
from .clipping import clip_factor
from .moments import wide_dtype, widen
from .parameters import wide_params

Layout = Literal["in_out", "out_in"]


def clip_by_block_rms(threshold: float) -> GradientTransform:
    """Shrink each leaf to a root mean square of at most `threshold`: `u <- u / max(1, rms(u) / threshold)`.

    Args:
        threshold: Largest root mean square, in the units of the updates. Not negative.

    Reference:
        Shazeer and Stern, "Adafactor", 2018, section 6, Algorithm 4's clipping threshold d. arXiv:1804.04235
    """
    check_numbers("clip_by_block_rms", LIMIT, threshold=threshold)
    return stateless(lambda updates, params: tree.map(lambda u: _shrunk(u, block_rms(u), threshold), updates), "clip_by_block_rms")


def clip_by_leaf_norm(max_norm: float) -> GradientTransform:
    """Shrink each leaf to a Euclidean norm of at most `max_norm`, whatever the other leaves are.

    Args:
        max_norm: Largest norm of a leaf, in the units of the updates. Not negative.

    Reference:
        `clip_by_global_norm` for each leaf by itself; optax 0.2.8 has no such transform.
    """
    check_numbers("clip_by_leaf_norm", LIMIT, max_norm=max_norm)
    return stateless(lambda updates, params: tree.map(lambda u: _shrunk(u, block_norm(u), max_norm), updates), "clip_by_leaf_norm")


def _shrunk(update: Tensor, size: Tensor, limit: float) -> Tensor:
    return (update * clip_factor(size, torch.zeros_like(size) + limit)).to(update.dtype)


def unitwise_norm(x: Tensor, axis: int | Sequence[int] | None = None, *, layout: Layout = "in_out") -> Tensor:
    """Norm of the weights of each unit, broadcast to the shape of `x`.

    Args:
        x: At most five-dimensional, unless `axis` is given.
        axis: Dimensions to sum over. By default all of a scalar or vector (dimensions of size 1 aside); of other leaves, what
            `layout` says.
        layout: "in_out": a unit is an index of the last dimension; the first is summed over, for convolutions all but the last.
            "out_in": a unit is an index of the first dimension, as in torch's weights; all others are summed over.
    """
    wide = x.to(wide_dtype(x.dtype))
    if axis is not None:
        dims = (axis,) if isinstance(axis, int) else tuple(axis)
    elif sum(size != 1 for size in x.shape) <= 1:
        dims = tuple(range(x.ndim))
    elif x.ndim > 5:
        raise ValueError(f"unitwise_norm: a leaf of shape {tuple(x.shape)} needs axis=...")
    elif layout == "out_in":
        dims = tuple(range(1, x.ndim))
    else:
        dims = (0,) if x.ndim <= 3 else tuple(range(x.ndim - 1))
    norm = torch.linalg.vector_norm(wide, dim=dims, keepdim=True) if dims else wide.abs()
    return norm.expand(x.shape)


def unitwise_clip(g_norm: Tensor, max_norm: Tensor, grad: Tensor, div_eps: float = 1e-6) -> Tensor:
    """Scale `grad` by `max_norm / g_norm` where `g_norm` is not below `max_norm`, all of one shape."""
    return torch.where(g_norm < max_norm, grad, grad * (max_norm / g_norm.clamp(min=div_eps)))


def adaptive_grad_clip(
    clipping: float, eps: float = 1e-3, axis: int | Sequence[int] | None = None, *, layout: Layout = "in_out"
) -> GradientTransform:
    """Bound the norm of each unit's update by a fraction of the norm of its parameters: `|u_i| <= clipping max(|p_i|, eps)`.

    Args:
        clipping: Largest ratio of the two norms. Not negative.
        eps: Smallest norm that a unit's parameters count as, in their units, so that zeros can move. Not negative.
        axis: Dimensions to sum over in place of those that `layout` gives.
        layout: See `unitwise_norm`. The default is optax's; the weights of torch's modules are "out_in".

    Reference:
        Brock et al., "High-performance large-scale image recognition without normalization", 2021, equation 3. arXiv:2102.06171
    """
    check_numbers("adaptive_grad_clip", LIMIT, clipping=clipping)
    check_numbers("adaptive_grad_clip", NOT_NEGATIVE, eps=eps)
    if layout not in ("in_out", "out_in"):
        raise ValueError(f"adaptive_grad_clip: layout must be 'in_out' or 'out_in', got {layout!r}")

    def clipped(u: Tensor, p: Tensor) -> Tensor:
        limit = clipping * unitwise_norm(p, axis, layout=layout).clamp(min=eps)
        return unitwise_clip(unitwise_norm(u, axis, layout=layout), limit, u)

    def call(updates: Tree, params: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        pairs = zip(widen(leaves), wide_params(params, "adaptive_grad_clip"), strict=True)
        return tree.unflatten(structure, [clipped(u, p) for u, p in pairs])

    return stateless(call, "adaptive_grad_clip")
