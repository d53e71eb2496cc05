"""Show a transform the parameters in another layout: one vector (`flatten`), or reals for complex leaves."""

import math
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .wrapping import close_gate, open_gate


def flatten(inner: GradientTransform) -> GradientTransform:
    """Run `inner` on all leaves joined to one vector, for the sake of fewer and larger operations.

    Whatever `inner` does leaf by leaf (norms, masks, factoring) it then does to the whole. Leaves of different dtypes are widened to
    the widest.

    Args:
        inner: Transform that sees one vector of all elements.

    Reference:
        optax 0.2.8 `flatten`.
    """

    def joined(whole: Tree) -> Tensor | None:
        if whole is None:
            return None
        leaves = tree.leaves(whole)
        return torch.cat([leaf.reshape(-1) for leaf in leaves]) if leaves else torch.zeros(0)

    def init(params: Tree) -> Any:
        return inner.init(joined(params))

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Any, Any]:
        leaves, structure = tree.flatten(updates)
        returned, new = inner.update(joined(updates), state, joined(params), **extra)
        vector, apply, reject = open_gate(returned)
        pieces = vector.split([math.prod(leaf.shape) for leaf in leaves]) if leaves else ()
        out = [piece.view(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
        return close_gate(tree.unflatten(structure, out), apply, reject), new

    return GradientTransform(init, update, f"flatten_{inner.name}", inner.needs, inner.scale_loss)


def split_real_and_imaginary(inner: GradientTransform) -> GradientTransform:
    """Run `inner` on real tensors: a complex leaf is shown with a last dimension of size 2, as `torch.view_as_real` does.

    `torch.optim` treats complex parameters so; without this wrapper the second moments here, as in optax, are of magnitudes.

    Args:
        inner: Transform that sees real leaves.

    Reference:
        optax 0.2.8 `contrib.split_real_and_imaginary`, which makes two leaves of a complex one. `torch.view_as_real`.
    """

    def real(whole: Tree) -> Tree:
        return whole if whole is None else tree.map(lambda leaf: torch.view_as_real(leaf).clone() if leaf.is_complex() else leaf, whole)

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Any, Any]:
        returned, new = inner.update(real(updates), state, real(params), **extra)
        changed, apply, reject = open_gate(returned)
        out = tree.map(lambda u, old: torch.view_as_complex(u.contiguous()) if old.is_complex() else u, changed, updates)
        return close_gate(out, apply, reject), new

    return GradientTransform(
        lambda params: inner.init(real(params)), update, f"split_real_and_imaginary_{inner.name}", inner.needs, inner.scale_loss
    )
