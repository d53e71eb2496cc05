"""Keep values in range: `zero_nans` for updates, `keep_params_nonnegative` for parameters."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from .parameters import wide_params


class ZeroNansState(NamedTuple):
    """State of `zero_nans`."""

    found_nan: Tree  # 0-d bool per leaf: whether the latest update held a NaN

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """Number of leaves whose latest update held a NaN."""
        found = tree.leaves(self.found_nan)
        return {"zero_nans/leaves": torch.stack(found).sum()} if found else {}


def zero_nans() -> GradientTransform:
    """Replace NaN by 0; infinity stays. `skip_nonfinite` is the safer answer to both.

    Reference:
        optax 0.2.8 `zero_nans`.
    """

    def init(params: Tree) -> ZeroNansState:
        return ZeroNansState(tree.map(lambda p: torch.zeros((), dtype=torch.bool, device=p.device), params))

    def update(updates: Tree, state: ZeroNansState, params: Tree = None, **extra: Any) -> tuple[Tree, ZeroNansState]:
        found = tree.map(lambda u: u.isnan().any(), updates)
        return tree.map(lambda u: torch.where(u.isnan(), torch.zeros_like(u), u), updates), ZeroNansState(found)

    return GradientTransform(init, update, "zero_nans")


def keep_params_nonnegative() -> GradientTransform:
    """Shorten each step so that no parameter becomes negative: `u <- max(u, -p)`. Stands last in a chain.

    Reference:
        optax 0.2.8 `keep_params_nonnegative`: a projected step, as in Bertsekas, "On the Goldstein-Levitin-Polyak gradient projection
        method", 1976.
    """

    def call(updates: Tree, params: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        pairs = zip(leaves, wide_params(params, "keep_params_nonnegative"), strict=True)
        return tree.unflatten(structure, [torch.where(p + u < 0, -p, u) for u, p in pairs])

    return stateless(call, "keep_params_nonnegative")
