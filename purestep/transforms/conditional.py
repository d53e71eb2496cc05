"""Run a transform only sometimes: `conditionally_transform`, `conditionally_mask`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .wrapping import close_gate, open_gate


class ConditionalState(NamedTuple):
    """State of `conditionally_transform` and `conditionally_mask`."""

    step: Tensor  # 0-d int64, calls so far
    inner_state: Any


def conditionally_transform(
    inner: GradientTransform, should_transform_fn: Callable[..., Tensor], forward_extra_args: bool = False
) -> GradientTransform:
    """Apply `inner` where a condition holds, else hand the updates on as they are; then the state of `inner` stays too.

    Args:
        inner: Any transform. It runs every time; what it returns is taken or left.
        should_transform_fn: `fn(step) -> 0-d bool tensor`, with the number of calls so far; `fn(step, **extra)` with `forward_extra_args`.
        forward_extra_args: Whether the condition sees the extra arguments of `update`.

    Reference:
        optax 0.2.8 `conditionally_transform`.
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, lambda u: u, "conditionally_transform")


def conditionally_mask(
    inner: GradientTransform, should_transform_fn: Callable[..., Tensor], forward_extra_args: bool = False
) -> GradientTransform:
    """Apply `inner` where a condition holds, else emit zeros; then the state of `inner` stays too.

    Args:
        inner: Any transform. It runs every time; what it returns is taken or left.
        should_transform_fn: `fn(step) -> 0-d bool tensor`, with the number of calls so far; `fn(step, **extra)` with `forward_extra_args`.
        forward_extra_args: Whether the condition sees the extra arguments of `update`.

    Reference:
        optax 0.2.8 `conditionally_mask`.
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, lambda u: torch.full_like(u, -0.0), "conditionally_mask")


def _conditional(
    inner: GradientTransform, condition: Callable[..., Tensor], forward: bool, otherwise: Callable[[Tensor], Tensor], name: str
) -> GradientTransform:
    def init(params: Tree) -> ConditionalState:
        return ConditionalState(scalar_like(params, 0, torch.int64), inner.init(params))

    def update(updates: Tree, state: ConditionalState, params: Tree = None, **extra: Any) -> tuple[Any, ConditionalState]:
        holds = condition(state.step, **extra if forward else {})
        returned, new = inner.update(updates, state.inner_state, params, **extra)
        changed, apply, reject = open_gate(returned)
        chosen = tree.map(lambda new, old: torch.where(holds, new, otherwise(old).to(new.dtype)), changed, updates)
        if apply is not None and reject is not None:
            apply, reject = apply | ~holds, reject & holds
        return close_gate(chosen, apply, reject), ConditionalState(state.step + 1, tree.where(holds, new, state.inner_state))

    return GradientTransform(init, update, name, inner.needs, _scale_loss_of(inner))


def _scale_loss_of(inner: GradientTransform) -> Callable[[Tensor, ConditionalState], Tensor] | None:
    if inner.scale_loss is None:
        return None
    raise ValueError(f"{inner.name} scales the loss of every batch; it cannot be conditional")
