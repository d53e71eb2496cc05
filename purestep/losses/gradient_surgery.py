"""How gradients of several terms become one, for `Training(..., combine_gradients=...)`.

Each is a pure function `(gradients, weights) -> gradient` of unweighted gradients, trees of one structure, and the weights of their
terms, 0-d. A user's own is such a function too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import tree
from ..core.loss import divide, sum_of
from ..core.tree import Tree


def weighted_sum(gradients: Sequence[Tree], weights: Sequence[Tensor]) -> Tree:
    """The gradient of the weighted loss, as without surgery: `sum_i w_i g_i`."""
    return _add([_scale(gradient, weight) for gradient, weight in zip(gradients, weights, strict=True)])


def project_conflicts(gradients: Sequence[Tree], weights: Sequence[Tensor]) -> Tree:
    """Take out of each gradient what works against another one, then add: gradients with `g_i g_j < 0` lose their part along the other.

    `g_i <- g_i - min(g_i g_j, 0) / |g_j|^2 g_j` for each `j` in turn, with the weighted gradients.

    Reference:
        Yu et al., "Gradient surgery for multi-task learning", 2020, algorithm 1. The others are taken in their order, not in a random one.
        arXiv:2001.06782
    """
    originals = [_scale(gradient, weight) for gradient, weight in zip(gradients, weights, strict=True)]
    squares = [_dot(gradient, gradient) for gradient in originals]
    projected = []
    for i, gradient in enumerate(originals):
        for j, other in enumerate(originals):
            if i != j:
                along = divide(torch.clamp(_dot(gradient, other), max=0.0), squares[j])
                gradient = _add([gradient, _scale(other, -along)])
        projected.append(gradient)
    return _add(projected)


def balance_norms(gradients: Sequence[Tree], weights: Sequence[Tensor]) -> Tree:
    """Bring all gradients to one norm before they are added: `sum_i w_i n g_i / |g_i|`, with `n` the weighted mean of the norms.

    A term with gradient zero stays out of both.

    Reference:
        Chen et al., "GradNorm: gradient normalization for adaptive loss balancing in deep multitask networks", 2018, equations 1 and 2
        with alpha = 0, solved at once: the paper learns weights that lead there. arXiv:1711.02257
    """
    norms = [tree.global_norm(gradient).to(torch.float64) for gradient in gradients]
    counted = [torch.where(norm > 0, weight, torch.zeros_like(weight)) for norm, weight in zip(norms, weights, strict=True)]
    mean = divide(sum_of(w * norm for w, norm in zip(counted, norms, strict=True)), sum_of(counted))
    return _add([_scale(gradient, divide(w * mean, norm)) for gradient, w, norm in zip(gradients, counted, norms, strict=True)])


def _scale(gradient: Tree, factor: Tensor) -> Tree:
    return tree.map(lambda g: g * factor.to(g.dtype), gradient)


def _add(gradients: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: sum_of(leaves), *gradients)


def _dot(one: Tree, other: Tree) -> Tensor:
    """The inner product over all leaves, 0-d, summed in float64."""
    products = tree.map(lambda a, b: (a.conj() * b).real.to(torch.float64).sum(), one, other)
    return sum_of(tree.leaves(products))
