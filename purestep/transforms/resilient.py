"""Rprop: a step size for each element, from the signs of its gradients alone."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import GROWING, NOT_NEGATIVE, POSITIVE, POSITIVE_LIMIT, SHRINKING, check_numbers
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .moments import widen, zeros_of_moments


class ScaleByRpropState(NamedTuple):
    """State of `scale_by_rprop`."""

    step_sizes: Tree
    prev_updates: Tree  # steps (optax) or gradients (torch) of last time, 0 after a change of sign


def scale_by_rprop(
    learning_rate: float,
    eta_minus: float = 0.5,
    eta_plus: float = 1.2,
    min_step_size: float = 1e-6,
    max_step_size: float = 50.0,
    *,
    convention: Literal["optax", "torch"] = "optax",
) -> GradientTransform:
    """Grow an element's step while its gradient keeps its sign, shrink it and wait when the sign changes.

        s <- s eta_plus if u u_last > 0, s eta_minus if < 0, within bounds;    u <- s sign(u), or 0 if u u_last < 0

    Args:
        learning_rate: First step size, in the units of the parameters. Positive.
        eta_minus: Factor on a step size when the sign changes, in (0, 1).
        eta_plus: Factor on a step size while the sign stays; above 1.
        min_step_size: Smallest step size. Not negative.
        max_step_size: Largest step size; at least the smallest.
        convention: `"torch"` takes this step at once (`torch.optim.Rprop`, and Riedmiller's Rprop-). `"optax"` takes it one update later,
            unless the sign has changed by then; and does not hold a step size to its bounds while the product is 0.

    Reference:
        Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm", 1993. Igel and Huesken,
        "Improving the Rprop learning algorithm", 2000 (its variants).
    """
    check_numbers("scale_by_rprop", POSITIVE, learning_rate=learning_rate)
    check_numbers("scale_by_rprop", SHRINKING, eta_minus=eta_minus)
    check_numbers("scale_by_rprop", GROWING, eta_plus=eta_plus)
    check_numbers("scale_by_rprop", NOT_NEGATIVE, min_step_size=min_step_size)
    check_numbers("scale_by_rprop", POSITIVE_LIMIT, max_step_size=max_step_size)
    if min_step_size > max_step_size:
        raise ValueError(f"scale_by_rprop: min_step_size must be at most max_step_size = {max_step_size}, got {min_step_size}")
    if convention not in ("optax", "torch"):
        raise ValueError(f"scale_by_rprop: unknown convention {convention!r} (known: optax, torch)")

    def init(params: Tree) -> ScaleByRpropState:
        zeros = zeros_of_moments(params)
        return ScaleByRpropState(tree.map(lambda z: torch.full_like(z, learning_rate), zeros), zeros)

    def update(updates: Tree, state: ScaleByRpropState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByRpropState]:
        leaves, structure = tree.flatten(updates)
        each = zip(widen(leaves), tree.leaves(state.step_sizes), tree.leaves(state.prev_updates), strict=True)
        results = [one(u, step, previous) for u, step, previous in each]
        out, steps, kept = (tree.unflatten(structure, [result[i] for result in results]) for i in range(3))
        return out, ScaleByRpropState(steps, kept)

    def one(u: Tensor, step: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product = u * previous
        changed = torch.where(product > 0, step * eta_plus, step * eta_minus).clamp(min_step_size, max_step_size)
        if convention == "torch":
            new = torch.where(product == 0, step.clamp(min_step_size, max_step_size), changed)
            kept = torch.where(product < 0, 0.0, u)
            return new * torch.sign(kept), new, kept
        new = torch.where(product == 0, step, changed)
        kept = torch.where(product < 0, 0.0, new * torch.sign(u))
        return torch.where(product < 0, 0.0, previous), new, kept

    return GradientTransform(init, update, "scale_by_rprop")
