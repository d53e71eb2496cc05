"""Lower the scale of the updates when a value stops improving: `reduce_on_plateau`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FRACTION, NOT_NEGATIVE, SHRINKING, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise


class _Settings(NamedTuple):
    factor: float
    bad_values: int  # values in a row without improvement that lower the scale
    rtol: float
    atol: float
    cooldown: int
    accumulation_size: int
    min_scale: float
    sign: float  # 1 where smaller is better, -1 where larger is


@tree.node(static=("settings",))
class ReduceOnPlateauState:
    """State of `reduce_on_plateau`; floats are 0-d float64, counts 0-d int64."""

    scale: Tensor  # what updates are multiplied by
    best_value: Tensor
    plateau_count: Tensor  # averages since the last improvement
    cooldown_count: Tensor  # averages still to be let pass
    count: Tensor  # values in the average under way
    avg_value: Tensor  # of those values
    settings: _Settings

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The scale and the best value so far."""
        return {"plateau/scale": self.scale, "plateau/best_value": self.best_value}


@tree.node(static=("settings",))
class ObservedPlateauState(ReduceOnPlateauState):
    """The same, for a value that comes from validation."""

    def observe(self, value: Tensor) -> "ObservedPlateauState":
        """The state after one more value."""
        return _after(self, value)


def reduce_on_plateau(
    factor: float = 0.1,
    patience: int = 10,
    rtol: float = 1e-4,
    atol: float = 0.0,
    cooldown: int = 0,
    accumulation_size: int = 1,
    min_scale: float = 0.0,
    *,
    mode: Literal["min", "max"] = "min",
    driven_by: Literal["value", "validation"] = "value",
    convention: Literal["optax", "torch"] = "optax",
) -> GradientTransform:
    """Multiply the updates by a scale that falls by `factor` whenever a value has stopped improving.

    A value is an improvement if it is better than the best so far by more than `rtol |best| + atol`. Stands after the learning rate.

    Args:
        factor: In (0, 1).
        patience: Values without improvement that are borne. By optax's convention the `patience`-th of them lowers the scale, by torch's
            the one after it (`ReduceLROnPlateau`: patience 0 lowers at the first).
        rtol: Relative margin, in [0, 1]; torch's `threshold` in the mode `"rel"`.
        atol: Absolute margin, in the units of the value. Not negative; torch's `threshold` in the mode `"abs"`. One margin must be
            positive.
        cooldown: Values after a reduction that cannot count as bad; at least 0.
        accumulation_size: Values averaged into one before they are judged; at least 1.
        min_scale: Least scale. Not negative.
        mode: Whether smaller or larger is better.
        driven_by: `"value"`: the loss that the step passes to every update. `"validation"`: what `ps.observe(state, value)` hands over
            between steps, and nothing else.
        convention: Of `patience`, see there.

    Raises:
        ValueError: If an argument is out of range.

    Reference:
        optax `reduce_on_plateau` and `torch.optim.lr_scheduler.ReduceLROnPlateau`. Both subtract `rtol * best`, which for a negative
        best value asks for the impossible (or for nothing); here the margin has the size of the best value.
    """
    check_numbers("reduce_on_plateau", SHRINKING, factor=factor)
    check_numbers("reduce_on_plateau", FRACTION, rtol=rtol)
    check_numbers("reduce_on_plateau", NOT_NEGATIVE, atol=atol, min_scale=min_scale)
    check_whole("reduce_on_plateau", at_least(1 if convention == "optax" else 0), patience=patience)
    check_whole("reduce_on_plateau", at_least(0), cooldown=cooldown)
    check_whole("reduce_on_plateau", at_least(1), accumulation_size=accumulation_size)
    if rtol == atol == 0:
        raise ValueError("reduce_on_plateau: one of the margins rtol and atol must be positive, got 0 and 0")
    if mode not in ("min", "max") or driven_by not in ("value", "validation") or convention not in ("optax", "torch"):
        raise ValueError(f"reduce_on_plateau: unknown mode {mode!r}, driven_by {driven_by!r} or convention {convention!r}")
    bad_values = patience if convention == "optax" else patience + 1
    settings = _Settings(factor, bad_values, rtol, atol, cooldown, accumulation_size, min_scale, 1.0 if mode == "min" else -1.0)
    kind = ReduceOnPlateauState if driven_by == "value" else ObservedPlateauState

    def init(params: Tree) -> ReduceOnPlateauState:
        plateau, cooling, count = (scalar_like(params, 0, torch.int64) for _ in range(3))
        best = scalar_like(params, settings.sign * float("inf"))
        return kind(scalar_like(params, 1.0), best, plateau, cooling, count, scalar_like(params, 0.0), settings)

    def update(
        updates: Tree, state: ReduceOnPlateauState, params: Tree = None, *, value: Tensor | float | None = None, **extra: Any
    ) -> tuple[Tree, ReduceOnPlateauState]:
        if driven_by == "value":
            state = _after(state, value)
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, leafwise.mul(leaves, state.scale)), state

    return GradientTransform(init, update, "reduce_on_plateau", frozenset({"value"}) if driven_by == "value" else frozenset())


def _after(state: Any, value: Any) -> Any:
    """The state after one more value."""
    count = state.count + 1
    average = (state.count * state.avg_value + (torch.zeros_like(state.avg_value) + value)) / count
    judged = _judged(state, average)
    full = count == state.settings.accumulation_size
    held = dataclasses.replace(state, count=count, avg_value=average)
    return tree.where(full, judged, held)


def _judged(state: Any, average: Tensor) -> Any:
    s = state.settings
    best = s.sign * state.best_value
    improved = s.sign * average < (1 - s.rtol * torch.sign(best)) * best - s.atol
    bad = torch.where(improved, 0, state.plateau_count + 1)
    cooling = state.cooldown_count > 0
    fires = ~cooling & (bad == s.bad_values)
    return dataclasses.replace(
        state,
        scale=torch.where(fires, (state.scale * s.factor).clamp(min=s.min_scale), state.scale.clamp(min=s.min_scale)),
        best_value=torch.where(improved, average, state.best_value),
        plateau_count=torch.where(cooling | fires, 0, bad),
        cooldown_count=torch.where(cooling, state.cooldown_count - 1, torch.where(fires, s.cooldown, 0)),
        count=torch.zeros_like(state.count),
        avg_value=torch.zeros_like(state.avg_value),
    )
