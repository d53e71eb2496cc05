"""Clip the gradient of each example before they are summed: functions, not transforms, for gradients with a batch dimension."""

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree
from .moments import widen


def per_example_global_norm_clip(grads: Tree, l2_norm_clip: float) -> tuple[Tree, Tensor]:
    """Shrink each example's gradient to a joint norm of at most `l2_norm_clip`, and sum over examples.

    Args:
        grads: Leaves of shape `(batch, ...)`.
        l2_norm_clip: Largest norm of one example.

    Returns:
        The sum, and the number of examples that were shrunk, 0-d int64.

    Raises:
        ValueError: If the leaves do not share a batch dimension.
    """
    leaves, structure = tree.flatten(grads)
    if not leaves or any(leaf.ndim == 0 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        raise ValueError(f"per-example gradients need one batch dimension in front, got shapes {[tuple(leaf.shape) for leaf in leaves]}")
    norms = torch.stack([torch.linalg.vector_norm(leaf.double().reshape(leaf.shape[0], -1), dim=1) for leaf in leaves])
    norm = torch.linalg.vector_norm(norms, dim=0)
    factors = torch.where(norm > l2_norm_clip, l2_norm_clip / torch.where(norm > 0, norm, 1.0), 1.0)
    total = [torch.tensordot(factors.to(leaf.dtype), leaf, dims=1) for leaf in widen(leaves)]
    return tree.unflatten(structure, total), (factors < 1).sum()


def per_example_layer_norm_clip(grads: Tree, global_l2_norm_clip: float, uniform: bool = True) -> tuple[Tree, Tree]:
    """Shrink each example's gradient leaf by leaf, so that their joint norm is at most `global_l2_norm_clip`, and sum over examples.

    Args:
        grads: Leaves of shape `(batch, ...)`.
        global_l2_norm_clip: Largest joint norm of one example.
        uniform: Give every leaf the same bound; False shares by the square root of the number of elements.

    Returns:
        The sums, and for each leaf the number of examples that were shrunk.

    Reference:
        McMahan et al., "Learning differentially private recurrent language models", 2018, Algorithm 1. arXiv:1710.06963
    """
    leaves, structure = tree.flatten(grads)
    sizes = [1 if uniform else leaf[0].numel() for leaf in leaves]
    bounds = [global_l2_norm_clip * (size / max(sum(sizes), 1)) ** 0.5 for size in sizes]
    pairs = [per_example_global_norm_clip([leaf], bound) for leaf, bound in zip(leaves, bounds, strict=True)]
    return tree.unflatten(structure, [total[0] for total, _ in pairs]), tree.unflatten(structure, [count for _, count in pairs])
