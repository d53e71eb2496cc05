"""The two transforms that do not look at the updates: `identity` and `set_to_zero`."""

import torch

from ..core import tree
from ..core.transform import GradientTransform, stateless


def identity() -> GradientTransform:
    """Hand the updates on as they are.

    Reference:
        optax 0.2.8 `identity`.
    """
    return stateless(lambda updates, params: updates, "identity")


def set_to_zero() -> GradientTransform:
    """Replace the updates by -0.0, which leaves every parameter as it is, bit for bit.

    Reference:
        optax 0.2.8 `set_to_zero`, which emits +0.0.
    """
    return stateless(lambda updates, params: tree.map(lambda u: torch.full_like(u, -0.0), updates), "set_to_zero")
