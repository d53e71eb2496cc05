"""The pure training step: forward, loss, gradient, transforms and hooks as one function of (state, batch).

`make_step` builds it from a plain loss function, `training.py` from modules. What happens before the gradient is in `objective.py`;
here are the stages after it, gates, counters and metrics, the same for both.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import rng, tree
from .by_terms import gradient_by_terms
from .grad import Engine, Gradient, runs_transformed
from .hook import Hook, Stage, StepContext, check_hooks, run_hooks
from .idle import Idle, agreed_idle, idle_leaves, put_back
from .loss import LossOutput, as_sums
from .objective import Cut, Metrics, Objective, cut_batch, gradient_over_cuts
from .ranks import Ranks
from .schedule import scalar_like
from .state import TrainState, check_same_form, check_state, count_batch, zero_counters
from .transform import (
    Gated,
    GradientTransform,
    apply_updates,
    chain,
    check_needs,
    check_takes_extra,
    collect_metrics,
    part_names,
)
from .tree import Tree

Step = Callable[[TrainState, Any], tuple[TrainState, Metrics]]

EXTRAS = frozenset({"value", "denominator", "counters", "key", "ranks", "idle"})
"""What the step passes to the chain beside updates, state and parameters."""


class _Update(NamedTuple):
    """What became of a gradient."""

    trainable: Tree
    opt_state: Any
    updates: Tree
    applied: Tensor | None  # 0-d bool; None: nothing can veto
    reject: Tensor | None  # 0-d bool; None: the batch cannot be bad
    gathered: Callable[[], Tree] | None = None  # the gradient of the whole update; None: it is that of the batch


def build_step(
    objective: Objective,
    optimizer: GradientTransform,
    hooks: Sequence[Hook] = (),
    microbatches: int = 1,
    engine: Engine = "auto",
) -> Step:
    """Put the step together.

    The step has an attribute `at(state)`, for the host to ask between batches: a step of less work with the same result at this state,
    or the step itself. Where a window of `accumulate` will stay open, whatever gates before it say, nothing behind it need be computed.

    Raises:
        HookError: If a hook cannot run inside the step.
        TransformError: If the chain needs an argument that the step does not pass, or a part refuses arguments that it does not know.
        ValueError: If `microbatches` is not positive.
    """
    hooks = check_hooks(hooks)
    check_needs(optimizer.name, optimizer.needs, dict.fromkeys(EXTRAS))
    check_takes_extra(optimizer)
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise ValueError(f"microbatches must be a whole number of at least 1, got {microbatches!r}")
    # Leaves that the loss does not reach, once they are found: a fact about the program, like a compilation cache. Dynamo cannot find
    # them, so a step that it traces relies on what an earlier call outside it has noted.
    known: set[str] = set()
    names = part_names(optimizer.parts)

    def run(update: Callable[..., _Update], state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        check_state(state, "step")
        cuts = objective.cut(batch, microbatches)
        differentiate = gradient_over_cuts if objective.combine is None else gradient_by_terms
        gradient, cut = differentiate(objective, optimizer, hooks, engine, state, cuts)
        if torch.compiler.is_dynamo_compiling():
            gradient = gradient._replace(unreached=tuple(known))
        _warn_unreached(gradient.unreached, known, objective.ranks)
        ctx, states = _observe_gradient(hooks, optimizer, state, cut, gradient)
        trainable, rest = objective.split(state.params)
        extras = _extras(objective, optimizer, state, cut.loss)
        new = update(optimizer, gradient, state, trainable, extras)
        params = objective.join(new.trainable, rest)
        buffers = objective.merge_buffers(state.buffers, cut.buffers)
        ctx = ctx.replace(params=params, buffers=buffers, updates=new.updates, applied=new.applied)
        states, ctx = run_hooks(hooks, Stage.AFTER_OPTIMIZER_STEP, states, ctx)
        counters = count_batch(state.counters, new.applied, objective.ranks.world_size)
        metrics = _joined(ctx.metrics, _update_metrics(optimizer, new, gradient.grads, state, extras))
        states, ctx = run_hooks(hooks, Stage.AFTER_BATCH, states, ctx.replace(counters=counters, metrics=metrics))
        if new.reject is not None:  # a rejected batch leaves no trace in buffers and hooks either
            buffers, states = tree.where(~new.reject, (buffers, states), (state.buffers, state.hook_state))
        after = TrainState(params, buffers, new.opt_state, states, counters, state.seed, state.aliases)
        check_same_form(state, after)
        return after, ctx.metrics

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        return run(_full_update, state, batch)

    def waiting_step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        return run(_waiting_update, state, batch)

    def at(state: TrainState) -> Step:
        return waiting_step if _waits(names, state) else step

    step.at, step.of = at, step  # type: ignore[attr-defined]
    return step


def form_at(step: Any, state: TrainState) -> Any:
    """The form of a step to run at this state: `step.at(state)` where it has one, and did not get it from what it wraps."""
    return step.at(state) if getattr(step, "of", None) is step else step


def _full_update(optimizer: GradientTransform, gradient: Gradient, state: TrainState, trainable: Tree, extras: dict[str, Any]) -> _Update:
    idle = _idle(optimizer, gradient.unreached, state.opt_state) if gradient.unreached else {}
    shared = {"idle": idle} if "ranks" in extras else {}
    result, opt_state = optimizer.update(gradient.grads, state.opt_state, trainable, **extras, **shared)
    new = apply_updates(trainable, result)
    updates = result.updates if isinstance(result, Gated) else result
    if shared:
        agreed = agreed_idle(opt_state, result.apply if isinstance(result, Gated) else None, trainable)
        idle = idle if agreed is None else agreed
    if idle:
        before = [trainable, state.opt_state, tree.map(lambda u: torch.full_like(u, -0.0), updates)]
        new, opt_state, updates = put_back(idle, trainable, before, [new, opt_state, updates])
    if isinstance(result, Gated):
        gathers = len(_head(optimizer, state.opt_state)[1]) > 0
        gathered = functools.partial(_gathered, optimizer, gradient.grads, state, trainable, extras) if gathers else None
        return _Update(new, opt_state, updates, result.apply, result.reject, gathered)
    return _Update(new, opt_state, updates, None, None)


def _idle(optimizer: GradientTransform, unreached: Sequence[str], opt_state: Any) -> Idle:
    """Leaves that an update does not concern: its last batch does not reach them, and no batch before it in the window did."""
    _, states = _head(optimizer, opt_state)
    return idle_leaves([state.total for state in states.values() if hasattr(state, "waits")], unreached)


def _waiting_update(
    optimizer: GradientTransform, gradient: Gradient, state: TrainState, trainable: Tree, extras: dict[str, Any]
) -> _Update:
    """The same while `accumulate` waits: the gates before it judge, it adds the gradient to its sums, everything else stays as it is."""
    head, opt_state = _head(optimizer, state.opt_state)
    result, new = head.update(gradient.grads, opt_state, trainable, **extras)
    silent = tree.map(lambda p: torch.full_like(p, -0.0), trainable)
    return _Update(trainable, {**state.opt_state, **new}, silent, scalar_like(trainable, False, torch.bool), result.reject)


def _waits(names: Sequence[str], state: TrainState) -> bool:
    """Whether a window stays open, whatever the gates before it say; `names` are those of the parts of the chain."""
    windows = [part for part in map(state.opt_state.get, names) if hasattr(part, "waits")] if names else []
    # on another device the question would wait for it
    return bool(windows) and state.seed.device.type == "cpu" and windows[-1].waits()


def _head(optimizer: GradientTransform, opt_state: Any) -> tuple[GradientTransform, dict[str, Any]]:
    """The parts of a chain up to the last one that gathers a window of batches, and their states; none of either if none does."""
    names = part_names(optimizer.parts)
    end = max([0, *(i for i, name in enumerate(names, 1) if hasattr(opt_state.get(name), "waits"))])
    return chain(*optimizer.parts[:end], name=optimizer.name), {name: opt_state[name] for name in names[:end]}


# --- around the update --------------------------------------------------------------------------------------------


def _observe_gradient(
    hooks: Sequence[Hook], optimizer: GradientTransform, state: TrainState, cut: Cut, gradient: Gradient
) -> tuple[StepContext, dict[str, Any]]:
    """The stages AFTER_BACKWARD and BEFORE_OPTIMIZER_STEP, with the gradient as it is without loss scaling."""
    ctx = StepContext(
        Stage.AFTER_BACKWARD,
        cut.batch,
        state.counters,
        state.params,
        state.buffers,
        state.seed,
        _joined(_loss_metrics(cut.loss), cut.metrics),
        predictions=cut.predictions,
        targets=cut.targets,
        loss=cut.loss,
    )
    if not any(
        {Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP, Stage.AFTER_BATCH} & hook.stages for hook in hooks
    ):
        return ctx, cut.hook_state
    ctx = ctx.replace(grads=_unscaled(optimizer, state, gradient.grads))
    states, ctx = run_hooks(hooks, Stage.AFTER_BACKWARD, cut.hook_state, ctx)
    states, ctx = run_hooks(hooks, Stage.BEFORE_OPTIMIZER_STEP, states, ctx)
    return ctx, states


def _unscaled(optimizer: GradientTransform, state: TrainState, grads: Tree) -> Tree:
    if optimizer.scale_loss is None:
        return grads
    factor = optimizer.scale_loss(scalar_like(grads, 1.0, torch.float32), state.opt_state)
    return tree.map(lambda g: g / factor, grads)


def _extras(objective: Objective, optimizer: GradientTransform, state: TrainState, loss: LossOutput) -> dict[str, Any]:
    """What the chain gets. The denominator is that of the first term: exact for a loss of one term, a weight by samples otherwise."""
    extras: dict[str, Any] = {"value": loss.total, "counters": state.counters}
    extras["denominator"] = next(iter(loss.sums.values())).denominator
    if "key" in optimizer.needs:
        extras["key"] = rng.fold_in(state.seed, state.counters.batch_count, purpose=rng.ROUNDING)
    if objective.ranks.world_size > 1:
        extras["ranks"] = objective.ranks
    return extras


def _warn_unreached(paths: tuple[str, ...], known: set[str], ranks: Ranks) -> None:
    if fresh := [path for path in paths if path not in known]:
        known.update(fresh)
        unless = "" if ranks.world_size == 1 else f", unless the share of another rank than {ranks.rank} reaches them"
        text = f"the loss does not depend on {', '.join(fresh)}: left as they are, without weight decay or momentum{unless}"
        warnings.warn(text, stacklevel=3)


def _joined(one: Metrics, other: Metrics) -> Metrics:
    if twice := sorted(one.keys() & other.keys()):
        raise ValueError(f"two metrics are called {', '.join(twice)}; rename what the loss function, a hook or a transform reports")
    return {**one, **other}


def _loss_metrics(loss: LossOutput) -> Metrics:
    metrics = {"loss/total": loss.total}
    for name, value in loss.components.items():
        if name:  # a plain loss function has no named terms
            metrics |= {f"loss/{name}/unweighted": value, f"loss/{name}/weight": loss.weights[name]}
    return metrics | {f"loss/{name}": value for name, value in loss.penalties.items()}


def _update_metrics(optimizer: GradientTransform, new: _Update, grads: Tree, state: TrainState, extras: dict[str, Any]) -> Metrics:
    """`update/applied`, `update/grad_norm` and what the chain reports.

    With an update comes the norm of its gradient, before clipping: of the whole window where the chain accumulates, of all ranks
    together; a part that sees that gradient (a clip, the sum over ranks) reports it. A batch without an update has its own norm.
    """
    metrics = collect_metrics(new.opt_state, optimizer.name)
    norm = metrics.pop("update/grad_norm", None)
    if norm is None and new.gathered is not None:
        norm = tree.global_norm(new.gathered())
    if norm is None or (new.applied is not None and "ranks" not in extras):
        own = tree.global_norm(_unscaled(optimizer, state, grads))
        norm = own if norm is None or new.applied is None else torch.where(new.applied, norm.to(own.dtype), own)
    took = scalar_like(state.params, True, torch.bool) if new.applied is None else new.applied
    return {"update/applied": took, "update/grad_norm": norm, **metrics}


def _gathered(optimizer: GradientTransform, grads: Tree, state: TrainState, trainable: Tree, extras: dict[str, Any]) -> Tree:
    """The gradient that the head of the chain hands on, without loss scaling.

    The head runs once more for it: a captured graph holds it once all the same, and eagerly it is a pass over the gradient per window.
    """
    head, opt_state = _head(optimizer, state.opt_state)
    result, _ = head.update(grads, opt_state, trainable, **extras)
    if optimizer.scale_loss is None:
        return result.updates
    one = scalar_like(grads, 1.0, torch.float32)
    left = optimizer.scale_loss(one, state.opt_state) / (one if head.scale_loss is None else head.scale_loss(one, opt_state))
    return tree.map(lambda g: g / left, result.updates)


# --- from a plain loss function -----------------------------------------------------------------------------------


def make_step(loss_fn: Callable[[Tree, Any], Any], optimizer: GradientTransform, hooks: Sequence[Hook] = (), microbatches: int = 1) -> Step:
    """Build the pure step `(state, batch) -> (state, metrics)` from a loss function.

    Args:
        loss_fn: `loss_fn(params, batch) -> scalar` or `(scalar, aux)`; pure. `params` is any tree. Tensors of a dict `aux` appear among
            the metrics. In place of a scalar mean it may return `Sums(numerator, denominator)`; then cuts of unequal sizes are exact too.
        optimizer: A transform or a chain.
        hooks: Run inside the step.
        microbatches: Cut each batch into so many equal parts along the first axis and take the mean of their losses, with the memory of
            one part. A batch that is already a tuple of that many batches is not cut again; such parts may be unequal, and then
            `loss_fn` should return `Sums`, or every part weighs the same whatever its size.

    Example:
        >>> step = ps.make_step(lambda w, x: (w * x).square().mean(), ps.sgd(0.1))
        >>> state, metrics = step(ps.init_state(torch.ones(()), ps.sgd(0.1)), torch.ones(3))
        >>> state.params, metrics["loss/total"]
        (tensor(0.8000), tensor(1.))
    """

    def forward(params: Tree, buffers: Tree, batch: Any, make_key: Callable[[], Tensor]) -> tuple[Any, Tree]:
        result = loss_fn(params, batch)
        return (result if type(result) is tuple else (result, {})), buffers

    def cut(batch: Any, parts: int) -> Sequence[Any]:
        cuts = cut_batch(batch, parts)
        if cuts is batch or parts == 1:
            return cuts
        sizes = {tuple(leaf.shape[0] for leaf in tree.leaves(part) if isinstance(leaf, Tensor) and leaf.ndim) for part in cuts}
        if len(sizes) > 1:
            raise ValueError(
                f"microbatches={parts}: parts of unequal sizes {sorted(sizes)}; the mean of their losses would weigh samples unequally; "
                "give the parts as a tuple, and return Sums"
            )
        return cuts

    objective = Objective(
        split=lambda params: (params, None),
        join=lambda params, rest: params,
        forward=forward,
        targets=lambda predictions, batch: None,
        sums=lambda predictions, targets, batch: {"": as_sums(predictions[0])},
        weights=lambda counters: (ones := {"": torch.ones_like(counters.step_count, dtype=torch.float64)}, ones),
        cut=cut,
        merge_buffers=lambda old, new: old,
        report=lambda predictions: _tensors_of(predictions[1]),
    )
    return build_step(objective, optimizer, hooks, microbatches)


def _tensors_of(aux: Any) -> Metrics:
    return {str(key): value for key, value in aux.items() if isinstance(value, Tensor)} if isinstance(aux, dict) else {}


def _no_parameter(path: str, leaf: Any) -> str:
    place, kind = f"params.{path}" if path else "params", type(leaf).__name__
    if isinstance(leaf, (nn.Module, Iterator)):
        return f"{place} is a {kind}; give a tree of tensors, such as dict(module.named_parameters()), or use ps.Training(module, ...)"
    return f"{place} is a {kind}; parameters are tensors, so wrap it: torch.tensor(...)"


def init_state(
    params: Tree, optimizer: GradientTransform, hooks: Sequence[Hook] = (), seed: int = 0, *, buffers: Tree = None, trainable: Tree = None
) -> TrainState:
    """The state before the first batch.

    Args:
        params: Any tree of tensors; copied, so that the state shares no memory with it.
        optimizer: The transform or chain of the step.
        hooks: The hooks of the step.
        seed: From which all randomness follows.
        buffers: Of modules.
        trainable: The part of `params` that the optimizer sees; all of it by default.

    Raises:
        TypeError: If a leaf of `params` is no tensor, or one to be trained is not floating point.
        HookError: If the hooks could not run.
    """
    for path, leaf in tree.items(params):
        if not isinstance(leaf, Tensor):
            raise TypeError(_no_parameter(path, leaf))
    copied = tree.map(lambda p: p.clone() if runs_transformed() else p.detach().clone(), params)
    for path, leaf in tree.items(copied):
        if trainable is None and not (leaf.is_floating_point() or leaf.is_complex()):
            raise TypeError(f"params.{path} has dtype {leaf.dtype}, which has no gradient; keep it in the batch, or close over it")
    leaves = tree.leaves(copied)
    device = leaves[0].device if leaves else None
    opt_state = optimizer.init(copied if trainable is None else trainable)
    bare = TrainState(
        copied,
        {} if buffers is None else buffers,
        opt_state,
        {},
        zero_counters(device),
        torch.tensor(seed, dtype=torch.int64, device=device),
    )
    return dataclasses.replace(bare, hook_state={hook.name: hook.init(bare) for hook in check_hooks(hooks)})
