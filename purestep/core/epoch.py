"""What happens between batches: an epoch is closed, a validation value is handed to the transforms that wait for it.

A part of an optimizer takes part by methods of its state: `observe(value) -> state`; `end_epoch() -> state`, with `closing`, a 0-d bool
that says whether the next call emits what an open window holds, and `open_loss`, the mean loss over that window.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import rng, tree
from .hook import Hook, Stage, StepContext, run_hooks
from .idle import Idle, idle_leaves, put_back
from .loss import LossOutput
from .objective import Objective
from .schedule import scalar_like
from .state import TrainState, check_not_consumed
from .transform import Gated, GradientTransform, apply_updates, children, rebuild


def end_epoch(state: TrainState) -> TrainState:
    """Close an epoch: `epoch_count` advances, `epoch_step_count` returns to 0. Pure."""
    check_not_consumed(state, "end_epoch")
    counters = dataclasses.replace(
        state.counters,
        epoch_count=state.counters.epoch_count + 1,
        epoch_step_count=torch.zeros_like(state.counters.epoch_step_count),
    )
    return dataclasses.replace(state, counters=counters, opt_state=_tell(state.opt_state, "end_epoch"))


def observe(state: TrainState, value: float | Tensor) -> TrainState:
    """Hand a validation value to the transforms that wait for one (`reduce_on_plateau`). Pure.

    Raises:
        ValueError: If no part of the optimizer takes one.
    """
    told = _tell(state.opt_state, "observe", value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64))
    if told is state.opt_state:
        raise ValueError(
            "observe: no transform in this optimizer waits for a validation value; add reduce_on_plateau(driven_by='validation')"
        )
    return dataclasses.replace(state, opt_state=told)


def observes(state: TrainState) -> bool:
    """Whether some part of the optimizer waits for a validation value."""
    return bool(_parts_with(state.opt_state, "observe"))


def _parts_with(node: Any, method: str) -> list[Any]:
    """The parts of a state that have the method."""
    if callable(getattr(type(node), method, None)):
        return [node]
    return [part for _, child in children(node) if not isinstance(child, Tensor) for part in _parts_with(child, method)]


def _tell(node: Any, method: str, *args: Any) -> Any:
    """Replace every part of a state that has the method by what the method returns; the same object if there is none."""
    if callable(getattr(type(node), method, None)):
        return getattr(node, method)(*args)
    return rebuild(node, {key: child if isinstance(child, Tensor) else _tell(child, method, *args) for key, child in children(node)})


# --- a window of accumulation that the epoch's end leaves open ------------------------------------------------------


def build_end_epoch(objective: Objective, optimizer: GradientTransform, hooks: Sequence[Hook] = ()) -> Callable[[TrainState], TrainState]:
    """An `end_epoch` that also emits what `accumulate(..., last="partial")` holds: the mean over the batches that are there.

    The emitted update counts as a step, but as no batch: hooks run at AFTER_OPTIMIZER_STEP only. Leaves whose sum is zero to the last bit
    are those that no batch of the window has reached: they stay, with their optimizer state, as they are.
    """

    def close(state: TrainState) -> TrainState:
        state = end_epoch(state)
        windows = _parts_with(state.opt_state, "end_epoch")
        if not windows:
            return state
        trainable, rest = objective.split(state.params)
        extras = _extras_without_batch(objective, optimizer, state, windows[0].open_loss)
        result, opt_state = optimizer.update(tree.zeros_like(trainable), state.opt_state, trainable, **extras)
        assert isinstance(result, Gated)
        idle = _idle_everywhere(objective, [window.total for window in windows], tree.paths(trainable))
        moved, opt_state = put_back(idle, trainable, [trainable, state.opt_state], [apply_updates(trainable, result), opt_state])
        params = objective.join(moved, rest)
        ctx = StepContext(Stage.AFTER_OPTIMIZER_STEP, None, state.counters, params, state.buffers, state.seed, {})
        ctx = ctx.replace(loss=LossOutput(extras["value"], {}, {}, {}, {}), updates=result.updates, applied=result.apply)
        states, _ = run_hooks(hooks, Stage.AFTER_OPTIMIZER_STEP, state.hook_state, ctx)
        steps = result.apply.to(torch.int64)
        counters = dataclasses.replace(
            state.counters,
            step_count=state.counters.step_count + steps,
            global_step_count=state.counters.global_step_count + steps * objective.ranks.world_size,
        )
        kept = tree.where(result.apply, states, state.hook_state)
        emitted = dataclasses.replace(
            state, params=params, opt_state=_as_before_window(state.opt_state, opt_state), hook_state=kept, counters=counters
        )
        return tree.where(torch.stack([window.closing for window in windows]).any(), emitted, state)

    return close


def _idle_everywhere(objective: Objective, windows: list[Any], paths: list[str]) -> Idle:
    """Leaves that no batch of any rank has reached."""
    here = idle_leaves(windows, paths)
    if objective.ranks.world_size == 1 or not here:
        return here
    busy = objective.ranks.sum(torch.stack([(~idle).to(torch.int64) for idle in here.values() if idle is not None]))
    return dict(zip(here, (busy == 0).unbind(), strict=True))


def _extras_without_batch(objective: Objective, optimizer: GradientTransform, state: TrainState, loss: Tensor) -> dict[str, Any]:
    """What the chain gets where there is no batch: the loss of the open window, and a denominator of 0."""
    extras: dict[str, Any] = {"value": loss, "denominator": scalar_like(state.params, 0.0), "counters": state.counters}
    if objective.ranks.world_size > 1:
        extras["ranks"] = objective.ranks
    if "key" in optimizer.needs:
        extras["key"] = rng.child_key(rng.fold_in(state.seed, state.counters.batch_count, purpose=rng.ROUNDING), 1)
    return extras


def _as_before_window(old: Any, new: Any) -> Any:
    """The new state, but of the parts that stand before the window the old one: for them there was no batch."""
    if isinstance(new, Tensor) or callable(getattr(type(new), "end_epoch", None)):
        return new
    merged: dict[str, Any] = {}
    passed = False
    for (key, before), (_, after) in zip(children(old), children(new), strict=True):
        holds = not passed and bool(_parts_with(after, "end_epoch"))
        merged[key] = after if passed else _as_before_window(before, after) if holds else before
        passed = passed or holds
    return rebuild(new, merged)
