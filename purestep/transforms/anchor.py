"""A copy of the parameters for a state to keep: where training began, or where a detour did."""

from ..core import tree
from ..core.tree import Tree
from .moments import wide_dtype


def copy_of(params: Tree) -> Tree:
    """The parameters in float32 or wider, in memory of their own."""
    return tree.map(lambda p: p.to(wide_dtype(p.dtype), copy=True), params)
