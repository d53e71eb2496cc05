"""Scale each leaf by the size of its parameters, or normalise the updates: LARS's and LAMB's trust ratio and its relatives."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, NOT_NEGATIVE, check_numbers
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from . import leafwise
from .moments import wide_dtype, widen
from .parameters import wide_params


def block_norm(leaf: Tensor, min_norm: float = 0.0) -> Tensor:
    """Euclidean norm of one leaf, at least `min_norm`; 0-d, of the leaf's dtype but at least float32."""
    return torch.linalg.vector_norm(leaf, dtype=wide_dtype(leaf.dtype)).clamp(min=min_norm)


def block_rms(leaf: Tensor, min_scale: float = 0.0) -> Tensor:
    """Root of the mean square of one leaf, at least `min_scale`; 0 for an empty leaf."""
    return (block_norm(leaf) / max(leaf.numel(), 1) ** 0.5).clamp(min=min_scale)


def scale_by_trust_ratio(min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0) -> GradientTransform:
    """Scale each leaf by the ratio of its parameters' norm to its update's: `u <- u trust_coefficient |p| / (|u| + eps)`.

    Where either norm is 0 the leaf stays as it is.

    Args:
        min_norm: Smaller norms count as this much. Not negative.
        trust_coefficient: Factor on the ratio. Not negative.
        eps: Added to the norm of the update. Not negative.

    Reference:
        You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020, Algorithm 2. arXiv:1904.00962
    """
    check_numbers("scale_by_trust_ratio", NOT_NEGATIVE, min_norm=min_norm, trust_coefficient=trust_coefficient, eps=eps)

    def scaled(update: Tensor, param: Tensor) -> Tensor:
        param_norm, update_norm = block_norm(param, min_norm), block_norm(update, min_norm)
        usable = (param_norm > 0) & (update_norm > 0)
        ratio = trust_coefficient * param_norm / torch.where(usable, update_norm + eps, 1.0)
        return update * torch.where(usable, ratio, 1.0)

    return _with_params(scaled, "scale_by_trust_ratio")


def scale_by_param_block_norm(min_scale: float = 1e-3) -> GradientTransform:
    """Multiply each leaf by the norm of its parameters, at least `min_scale`.

    Args:
        min_scale: Smallest factor, in the units of the parameters. Not negative.

    Reference:
        optax 0.2.8 `scale_by_param_block_norm`.
    """
    check_numbers("scale_by_param_block_norm", NOT_NEGATIVE, min_scale=min_scale)
    return _with_params(lambda update, param: update * block_norm(param, min_scale), "scale_by_param_block_norm")


def scale_by_param_block_rms(min_scale: float = 1e-3) -> GradientTransform:
    """Multiply each leaf by the root mean square of its parameters, at least `min_scale`.

    Args:
        min_scale: Smallest factor, in the units of the parameters. Not negative.

    Reference:
        Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018, section 8 (relative steps).
        arXiv:1804.04235. optax 0.2.8 `scale_by_param_block_rms`.
    """
    check_numbers("scale_by_param_block_rms", NOT_NEGATIVE, min_scale=min_scale)
    return _with_params(lambda update, param: update * block_rms(param, min_scale), "scale_by_param_block_rms")


def _with_params(fn: Callable[[Tensor, Tensor], Tensor], name: str) -> GradientTransform:
    def call(updates: Tree, params: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, [fn(u, p) for u, p in zip(widen(leaves), wide_params(params, name), strict=True)])

    return stateless(call, name)


def normalize_by_update_norm(scale_factor: float = 1.0, eps: float = 1e-6) -> GradientTransform:
    """Give the updates a joint norm of about `scale_factor`: `u <- scale_factor u / (|u| + eps)`.

    Args:
        scale_factor: The norm afterwards, in the units of the parameters; finite.
        eps: Added to the norm. Not negative.

    Reference:
        optax 0.2.8 `normalize_by_update_norm`.
    """
    check_numbers("normalize_by_update_norm", FINITE, scale_factor=scale_factor)
    check_numbers("normalize_by_update_norm", NOT_NEGATIVE, eps=eps)

    def call(updates: Tree, params: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, leafwise.mul(leaves, scale_factor / (tree.global_norm(leaves) + eps)))

    return stateless(call, "normalize_by_update_norm")


def centralize() -> GradientTransform:
    """Subtract from each leaf of two or more dimensions its mean over all dimensions but the first.

    For a weight of torch's layout (out, in, ...) that is the mean over each output's inputs.

    Reference:
        Yong et al., "Gradient centralization", 2020, equation 1. arXiv:2004.01461
    """

    def centred(u: Tensor) -> Tensor:
        return u - u.mean(dim=tuple(range(1, u.ndim)), keepdim=True) if u.ndim > 1 else u

    return stateless(lambda updates, params: tree.map(centred, updates), "centralize")
