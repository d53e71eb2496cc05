"""Weight decay: `add_decayed_weights`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..core.ranges import NOT_NEGATIVE, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam
from ..core.selection import Mask, masked
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .parameters import wide_params


class AddDecayedWeightsState(NamedTuple):
    """State of `add_decayed_weights`."""

    weight_decay: Hyperparam

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The decay of the latest update."""
        return {"weight_decay": self.weight_decay.value}


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: Mask | None = None) -> GradientTransform:
    """Add a multiple of the parameters: `u <- u + weight_decay p`.

    After an adaptive scaling this is decoupled decay (AdamW); before it, the L2 term of `torch.optim.SGD(weight_decay=...)`.

    Args:
        weight_decay: A number, which becomes a leaf of the state, or a schedule of the number of updates so far. Not negative. A learning
            rate that follows multiplies it, as in torch and optax.
        mask: Which leaves decay; all by default.

    Reference:
        Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, Algorithm 2. arXiv:1711.05101
    """
    check_schedulable("add_decayed_weights", NOT_NEGATIVE, weight_decay=weight_decay)

    def init(params: Tree) -> AddDecayedWeightsState:
        return AddDecayedWeightsState(init_hyperparam(weight_decay, params))

    def update(updates: Tree, state: AddDecayedWeightsState, params: Tree = None, **extra: Any) -> tuple[Tree, AddDecayedWeightsState]:
        decay = next_hyperparam(weight_decay, state.weight_decay)
        leaves, structure = tree.flatten(updates)
        decayed = leafwise.mul(wide_params(params, "add_decayed_weights"), decay.value)
        return tree.unflatten(structure, leafwise.add(decayed, leaves)), AddDecayedWeightsState(decay)

    decayed_weights = GradientTransform(init, update, "add_decayed_weights")
    return decayed_weights if mask is None else masked(decayed_weights, mask)


def at_least_2d(params: Tree) -> Tree:
    """The usual mask for weight decay: True for matrices and larger, False for biases and scales.

    `adamw(1e-3, weight_decay=0.1, mask=at_least_2d)`.
    """
    return tree.map(lambda p: p.ndim >= 2, params)
