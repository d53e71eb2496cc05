"""Parameters that follow others: `incremental_update` (Polyak), `periodic_update` (copies). Functions, not transforms."""

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree


def incremental_update(new_tensors: Tree, old_tensors: Tree, step_size: float | Tensor) -> Tree:
    """`step_size new + (1 - step_size) old`, leaf by leaf, in the dtype of the old ones.

    Reference:
        Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
    """
    return tree.map(lambda new, old: (step_size * new + (1.0 - step_size) * old).to(old.dtype), new_tensors, old_tensors)


def periodic_update(new_tensors: Tree, old_tensors: Tree, steps: Tensor, update_period: int) -> Tree:
    """The new tensors when `steps` is a multiple of `update_period`, else the old ones.

    Reference:
        Grill et al., "Bootstrap your own latent", 2020; Mnih et al., "Human-level control", 2015 (target networks).
    """
    return tree.map(lambda new, old: torch.where(steps % update_period == 0, new.to(old.dtype), old), new_tensors, old_tensors)
