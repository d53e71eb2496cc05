"""One step of a training, run eagerly and looked at: loss terms, gradients, and the first leaf that is not finite."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.hook import Hook, Stage, StepContext
from ...core.state import TrainState
from ...training import Training
from .watching import Culprit, FirstNonfinite

_LOOK = "look at one step"


class Step(NamedTuple):
    """A step that was run."""

    before: TrainState
    batch: Any
    after: TrainState
    metrics: dict[str, Tensor]
    seen: StepContext
    """What the step held after its update."""


class Bad(NamedTuple):
    """A leaf with values that are not finite."""

    part: str
    path: str
    num_bad: int
    num_values: int


def run_step(training: Training, state: TrainState, batch: Any) -> Step:
    """Run the step of a training, with the result that it always has, and keep what it saw on the way.

    Args:
        state: Stays as it is.
    """
    kept: list[StepContext] = []

    def look(own: tuple[()], ctx: StepContext) -> tuple[tuple[()], StepContext]:
        kept.append(ctx)
        return own, ctx

    hook = Hook(_LOOK, frozenset({Stage.AFTER_OPTIMIZER_STEP}), lambda state: (), look)
    watched = training.replace(hooks=(*training.hooks, hook))
    after, metrics = watched.step(dataclasses.replace(state, hook_state={**state.hook_state, _LOOK: ()}), batch)
    hooks = {name: own for name, own in after.hook_state.items() if name != _LOOK}
    return Step(state, batch, dataclasses.replace(after, hook_state=hooks), metrics, kept[0])


def nonfinite_leaves(step: Step) -> list[Bad]:
    """All leaves that are not finite, in the order in which a step comes to them."""
    parts = {
        "parameters before": step.before.params,
        "buffers before": step.before.buffers,
        "optimizer state before": step.before.opt_state,
        "batch": step.batch,
        "predictions": step.seen.predictions,
        "loss": {name: value for name, value in step.metrics.items() if name.startswith("loss/")},
        "gradients": step.seen.grads,
        "updates": step.seen.updates,
        "parameters after": step.after.params,
        "buffers after": step.after.buffers,
        "optimizer state after": step.after.opt_state,
    }
    found = []
    for part, leaves in parts.items():
        for path, leaf in tree.items(leaves):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()) and not bool(torch.isfinite(leaf).all()):
                found.append(Bad(part, path, int((~torch.isfinite(leaf)).sum()), leaf.numel()))
    return found


def first_operations(training: Training, step: Step) -> tuple[Culprit | None, Culprit | None]:
    """Run a step again, and watch every operation: the first whose result is not finite, and the first that makes a NaN."""
    models = training.models if isinstance(training.models, Mapping) else {"": training.models}
    names = {id(module): path.strip(".") for name, model in models.items() for path, module in model.named_modules(prefix=name)}
    watch = FirstNonfinite(names)
    with torch.autograd.set_multithreading_enabled(False), watch:  # a mode belongs to its thread
        training.step(step.before, step.batch)
    return watch.first, watch.first_nan


def gradient_norms(step: Step) -> dict[str, float]:
    """Norm of the gradient of each leaf, largest first; what is not finite comes first of all."""
    norms = {path: float(torch.linalg.vector_norm(leaf)) for path, leaf in tree.items(step.seen.grads)}
    return dict(sorted(norms.items(), key=lambda item: (item[1] == item[1], -item[1])))
