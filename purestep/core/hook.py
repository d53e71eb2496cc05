"""What a hook is: a pure function of a stage's context, traced into the step; and what each stage holds and may replace.

`hooks/` holds the hooks themselves. Whatever acts on the world outside is a listener of the loop (`event.py`).
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import HookError
from . import tree
from .loss import LossOutput
from .state import Counters
from .tree import Tree


class Stage(enum.Enum):
    """The points of a run at which something may be done, in order of first occurrence.

    Hooks run inside the step, at the ten stages of the table, and may replace the fields of the context named there (metrics always).
    The chain of transforms owns DO_BACKWARD and DO_OPTIMIZER_STEP. Listeners hear the others, outside the step, and AFTER_BATCH too.

    | stage | what a hook may replace |
    |---|---|
    | BEFORE_BATCH, BEFORE_FORWARD | `batch` |
    | AFTER_FORWARD | `predictions` |
    | BEFORE_LOSS | `predictions`, `targets` |
    | AFTER_LOSS | `loss`; of a cut batch or one shared by ranks only `loss.with_penalty(name, value)` |
    | BEFORE_BACKWARD, AFTER_BACKWARD, BEFORE_OPTIMIZER_STEP, AFTER_OPTIMIZER_STEP, AFTER_BATCH | nothing: they observe |
    """

    SETUP = "SETUP"
    BEFORE_TRAINING = "BEFORE_TRAINING"
    BEFORE_EPOCH = "BEFORE_EPOCH"
    BEFORE_BATCH = "BEFORE_BATCH"
    BEFORE_FORWARD = "BEFORE_FORWARD"
    AFTER_FORWARD = "AFTER_FORWARD"
    BEFORE_LOSS = "BEFORE_LOSS"
    AFTER_LOSS = "AFTER_LOSS"
    BEFORE_BACKWARD = "BEFORE_BACKWARD"
    DO_BACKWARD = "DO_BACKWARD"
    AFTER_BACKWARD = "AFTER_BACKWARD"
    BEFORE_OPTIMIZER_STEP = "BEFORE_OPTIMIZER_STEP"
    DO_OPTIMIZER_STEP = "DO_OPTIMIZER_STEP"
    AFTER_OPTIMIZER_STEP = "AFTER_OPTIMIZER_STEP"
    AFTER_BATCH = "AFTER_BATCH"
    AFTER_VALIDATION = "AFTER_VALIDATION"
    AFTER_EPOCH = "AFTER_EPOCH"
    AFTER_TRAINING = "AFTER_TRAINING"


MAY_REPLACE: dict[Stage, frozenset[str]] = {
    Stage.BEFORE_BATCH: frozenset({"batch"}),
    Stage.BEFORE_FORWARD: frozenset({"batch"}),
    Stage.AFTER_FORWARD: frozenset({"predictions"}),
    Stage.BEFORE_LOSS: frozenset({"predictions", "targets"}),
    Stage.AFTER_LOSS: frozenset({"loss"}),
    Stage.BEFORE_BACKWARD: frozenset(),
    Stage.AFTER_BACKWARD: frozenset(),
    Stage.BEFORE_OPTIMIZER_STEP: frozenset(),
    Stage.AFTER_OPTIMIZER_STEP: frozenset(),
    Stage.AFTER_BATCH: frozenset(),
}
"""Stages inside the step at which hooks run, and the fields of the context that a hook may replace there (metrics always)."""

OWNED_BY_CHAIN = {
    Stage.DO_BACKWARD: "a transform with scale_loss, or one before the optimizer in the chain",
    Stage.DO_OPTIMIZER_STEP: "a transform (it sees and changes the updates) or a gate (it vetoes them)",
}


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What a hook sees; fields that a stage does not have yet are None."""

    stage: Stage
    batch: Any
    counters: Counters
    """Before this batch; at AFTER_BATCH, after it."""
    params: Tree
    """Of the state; from AFTER_OPTIMIZER_STEP on, the new ones."""
    buffers: Tree
    seed: Tensor
    """With the counters, the source of a hook's random numbers: `rng.fold_in(seed, batch_count, purpose=rng.HOOKS)`."""
    metrics: dict[str, Tensor]
    predictions: Any = None
    targets: Any = None
    loss: LossOutput | None = None
    """Live from AFTER_LOSS to BEFORE_BACKWARD, detached afterwards."""
    grads: Tree = None
    """Of trainable leaves, unscaled."""
    updates: Tree = None
    applied: Tensor | None = None
    """0-d bool; None: nothing in the chain can veto."""

    def replace(self, **changes: Any) -> "StepContext":
        """A context with other values."""
        return dataclasses.replace(self, **changes)

    def with_metrics(self, **metrics: Tensor) -> "StepContext":
        """A context with more metrics; a slash in a name goes through `replace(metrics={...})`."""
        return self.replace(metrics={**self.metrics, **metrics})


_FIELDS = tuple(field.name for field in dataclasses.fields(StepContext))


class Hook(NamedTuple):
    """A pair of pure functions that the step runs at its stages; `Stage` says which these are, and what may be replaced at each.

    Example:
        >>> def update(largest, ctx):
        ...     largest = torch.maximum(largest, ctx.loss.total)
        ...     return largest, ctx.with_metrics(largest_loss=largest)
        >>> hook = ps.Hook("largest_loss", frozenset({ps.Stage.AFTER_BACKWARD}), lambda state: torch.zeros(()), update)
    """

    name: str
    stages: frozenset[Stage]
    init: Callable[[Any], Any]
    """`init(state) -> hook state`; sees the state with no hook states in it."""
    update: Callable[[Any, StepContext], tuple[Any, StepContext]]
    """`update(hook state, context) -> (hook state, context)`."""


def check_hooks(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """Refuse hooks that could not run, when the training is put together.

    Raises:
        HookError: For two hooks of one name, a stage outside the step, or a stage that the chain owns.
    """
    seen: set[str] = set()
    if isinstance(hooks, Hook):
        raise HookError(f"hooks: give a list of hooks, [{hooks.name}], got the hook itself")
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise HookError(f"hooks: expected a Hook, got {type(hook).__name__}; what acts on the world outside is a listener of fit")
        if hook.name in seen:
            raise HookError(f"two hooks are called {hook.name!r}; their states are kept by name, so give one another name=")
        seen.add(hook.name)
        for stage in sorted(hook.stages, key=lambda stage: stage.value):
            if stage in OWNED_BY_CHAIN:
                raise HookError(
                    f"hook {hook.name!r} asks for {stage.name}, which belongs to the chain; write {OWNED_BY_CHAIN[stage]} instead"
                )
            if stage not in MAY_REPLACE:
                raise HookError(f"hook {hook.name!r} asks for {stage.name}, which is outside the step; write a listener and pass it to fit")
    return tuple(hooks)


def run_hooks(
    hooks: Sequence[Hook], stage: Stage, states: dict[str, Any], ctx: StepContext, cut: bool = False
) -> tuple[dict[str, Any], StepContext]:
    """Run the hooks of a stage in order.

    Args:
        cut: Whether the loss is over a part of the batch: then it may only gain penalties.

    Raises:
        HookError: If a hook replaced what it may not, naming hook, stage and field.
    """
    ctx = ctx.replace(stage=stage)
    for hook in hooks:
        if stage not in hook.stages:
            continue
        if hook.name not in states:
            raise HookError(f"the state has no hook {hook.name!r} (it has {sorted(states)}); was it made with other hooks?")
        result = hook.update(states[hook.name], ctx)
        if type(result) is not tuple or len(result) != 2:
            raise HookError(f"hook {hook.name!r} at {stage.name} returned {type(result).__name__}; expected (hook state, context)")
        state, after = result
        _check_replacements(hook, stage, ctx, after, cut)
        states, ctx = {**states, hook.name: state}, after
    return states, ctx


def _is_same(one: Any, other: Any) -> bool:
    if not torch.compiler.is_dynamo_compiling():
        return one is other
    # Dynamo of torch 2.11 cannot tell whether two dicts are one, but whether two tensors are
    leaves, others = tree.leaves(one), tree.leaves(other)
    return len(leaves) == len(others) and all(a is b for a, b in zip(leaves, others, strict=True))


def _check_replacements(hook: Hook, stage: Stage, before: StepContext, after: StepContext, cut: bool) -> None:
    if not isinstance(after, StepContext):
        raise HookError(f"hook {hook.name!r} at {stage.name} returned {type(after).__name__}; expected (hook state, context)")
    touched = {name for name in _FIELDS if not _is_same(getattr(after, name), getattr(before, name))}
    if illegal := sorted(touched - MAY_REPLACE[stage] - {"metrics"}):
        may = sorted(MAY_REPLACE[stage] | {"metrics"})
        raise HookError(f"hook {hook.name!r} at {stage.name} replaced {', '.join(illegal)}; it may replace {', '.join(may)}")
    if "loss" in touched and cut and (after.loss is None or before.loss is None or after.loss.sums is not before.loss.sums):
        raise HookError(
            f"hook {hook.name!r} at {stage.name} replaced the loss of a part of the batch; when the batch is cut or shared "
            "among ranks, only ctx.loss.with_penalty(name, value), a term without the batch, keeps the result independent of the cut"
        )
