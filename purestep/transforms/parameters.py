"""Reading the parameters in an update that cannot do without them."""

from ..core import tree
from ..core.tree import Tree
from ..errors import TransformError
from .leafwise import Leaves
from .moments import widen


def wide_params(params: Tree, name: str) -> Leaves:
    """The leaves of `params`, float32 or wider.

    Raises:
        TransformError: If `update` was called without them.
    """
    if params is None:
        raise TransformError(f"{name} looks at the parameters: call update(updates, state, params)")
    return widen(tree.leaves(params))
