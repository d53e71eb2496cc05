"""Steps of one size in every element: `scale_by_sign` and Lion's `scale_by_lion`."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform, stateless
from ..core.tree import Tree
from . import leafwise
from .moments import decay_mean, widen, zeros_of_moments

LionMode = Literal["hard", "smooth", "refined"]


def scale_by_sign() -> GradientTransform:
    """Replace each element by its sign; 0 stays 0.

    Reference:
        Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018, Algorithm 1. arXiv:1802.04434
    """
    return stateless(lambda updates, params: tree.map(torch.sign, updates), "scale_by_sign")


class ScaleByLionState(NamedTuple):
    """State of `scale_by_lion`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates


def scale_by_lion(
    b1: float = 0.9, b2: float = 0.99, mu_dtype: torch.dtype | None = None, *, mode: LionMode = "hard", smooth_beta: float = 1.0
) -> GradientTransform:
    """Take the sign of a mix of the update and its running mean.

        u <- sign(b1 m + (1 - b1) u);      m <- b2 m + (1 - b2) u

    Args:
        b1: Weight of the running mean in the step, in [0, 1).
        b2: Decay of the running mean, in [0, 1).
        mu_dtype: Storage of the mean; float32 or wider by default.
        mode: "hard" is the sign; "smooth" is `tanh(smooth_beta x)`; "refined" is x where `|x| < 1`, else its sign.
        smooth_beta: Steepness of "smooth". Not negative.

    Reference:
        Chen et al., "Symbolic discovery of optimization algorithms", 2023, Algorithm 2. arXiv:2302.06675
    """
    check_numbers("scale_by_lion", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_lion", NOT_NEGATIVE, smooth_beta=smooth_beta)
    squash = {
        "hard": torch.sign,
        "smooth": lambda x: torch.tanh(smooth_beta * x),
        "refined": lambda x: torch.where(x.abs() < 1, x, torch.sign(x)),
    }
    if mode not in squash:
        raise ValueError(f"scale_by_lion: mode must be one of {sorted(squash)}, got {mode!r}")

    def init(params: Tree) -> ScaleByLionState:
        return ScaleByLionState(scalar_like(params, 0, torch.int64), zeros_of_moments(params, mu_dtype))

    def update(updates: Tree, state: ScaleByLionState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByLionState]:
        leaves, structure = tree.flatten(updates)
        wide, old_mu = widen(leaves), tree.leaves(state.mu)
        mixed = decay_mean(old_mu, wide, b1)
        out = leafwise.sign(mixed) if mode == "hard" else [squash[mode](x) for x in mixed]
        mu = leafwise.cast(decay_mean(old_mu, wide, b2), [m.dtype for m in old_mu])
        return tree.unflatten(structure, out), ScaleByLionState(state.count + 1, tree.unflatten(structure, mu))

    return GradientTransform(init, update, "scale_by_lion")
