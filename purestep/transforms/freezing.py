"""Train some leaves and leave the others alone, without state for them: `selective_transform`."""

from ..core import tree
from ..core.selection import Mask, freeze, masked, resolve_mask
from ..core.transform import GradientTransform, chain
from ..core.tree import Tree


def selective_transform(optimizer: GradientTransform, *, freeze_mask: Mask) -> GradientTransform:
    """Run `optimizer` on the leaves where `freeze_mask` is False; the others get zeros and have no state.

    Args:
        optimizer: For the leaves that are not frozen.
        freeze_mask: True means frozen, as in `freeze`.

    Reference:
        optax 0.2.8 `selective_transform`.
    """

    def trained(params: Tree) -> Tree:
        frozen = resolve_mask(freeze_mask, params)
        return tree.unflatten(tree.structure(params), [not hit for hit in frozen])

    return chain(masked(optimizer, trained), freeze(freeze_mask), name="selective_transform")
