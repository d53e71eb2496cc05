"""Polyak's step size: the loss above its minimum over the squared norm of the gradient."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE_LIMIT, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen


class ScaleByPolyakState(NamedTuple):
    """State of `scale_by_polyak`."""

    step_size: Tensor  # 0-d float64, of the latest update

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The step size of the latest update."""
        return {"step_size": self.step_size}


def scale_by_polyak(
    f_min: float = 0.0, max_learning_rate: float = 1.0, eps: float = 0.0, variant: Literal["sps", "sps+"] = "sps"
) -> GradientTransform:
    """Multiply by `min((value - f_min) / (|u|^2 + eps), max_learning_rate)`; zero updates stay zero.

    Needs `value`, the loss of the step.

    Args:
        f_min: Least possible loss, in the units of the loss; finite.
        max_learning_rate: Largest step size. Positive.
        eps: Added to the squared norm. Not negative.
        variant: `"sps+"` takes no step where the loss is below `f_min`, `"sps"` one uphill.

    Reference:
        Loizou et al., "Stochastic Polyak step-size for SGD", 2021, eq. 3. arXiv:2002.10542. Garrigos et al., "Function value learning",
        2023 (SPS+). arXiv:2307.14528
    """
    check_numbers("scale_by_polyak", FINITE, f_min=f_min)
    check_numbers("scale_by_polyak", POSITIVE_LIMIT, max_learning_rate=max_learning_rate)
    check_numbers("scale_by_polyak", NOT_NEGATIVE, eps=eps)
    if variant not in ("sps", "sps+"):
        raise ValueError(f"scale_by_polyak: unknown variant {variant!r} (known: sps, sps+)")

    def init(params: Tree) -> ScaleByPolyakState:
        return ScaleByPolyakState(scalar_like(params, 0.0))

    def update(
        updates: Tree, state: ScaleByPolyakState, params: Tree = None, *, value: Tensor | float, **extra: Any
    ) -> tuple[Tree, ScaleByPolyakState]:
        leaves, structure = tree.flatten(updates)
        square = tree.global_norm(leaves).to(state.step_size.device) ** 2 + eps
        gap = torch.zeros_like(state.step_size) + value - f_min
        gap = gap.clamp(min=0.0) if variant == "sps+" else gap
        still = square <= torch.finfo(torch.float64).eps
        step = torch.where(still, 0.0, (gap / torch.where(still, 1.0, square)).clamp(max=max_learning_rate))
        return tree.unflatten(structure, leafwise.mul(widen(leaves), step)), ScaleByPolyakState(step)

    return GradientTransform(init, update, "scale_by_polyak", frozenset({"value"}))
