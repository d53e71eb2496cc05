"""The pure training step: forward, loss, gradient, transforms and hooks as one function of (state, batch).

An `Objective` says how predictions and loss come about; `make_step` builds one from a plain loss function, `training.py` one from
modules. Everything else, the order of stages, cuts of the batch, gates, counters, is here and the same for both.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import rng, tree
from .grad import Engine, Gradient, value_and_grad
from .hook import Hook, Stage, StepContext, check_hooks, run_hooks
from .loss import LossOutput, Sums, as_sums, divide, merge_sums, sum_of, total_loss
from .schedule import scalar_like
from .state import Counters, TrainState, count_batch, zero_counters
from .transform import Gated, GradientTransform, apply_updates, check_needs, children, collect_metrics
from .tree import Tree

Metrics = dict[str, Tensor]
Step = Callable[[TrainState, Any], tuple[TrainState, Metrics]]

EXTRAS = frozenset({"value", "denominator", "counters", "key"})
"""What the step passes to the chain beside updates, state and parameters."""


class Objective(NamedTuple):
    """How a batch becomes a loss, as pure functions."""

    split: Callable[[Tree], tuple[Tree, Tree]]
    """`split(params) -> (trainable, the rest)`."""
    join: Callable[[Tree, Tree], Tree]
    """The inverse of `split`."""
    forward: Callable[[Tree, Tree, Any, Callable[[], Tensor]], tuple[Any, Tree]]
    """`forward(params, buffers, batch, make_key) -> (predictions, changed buffers)`."""
    targets: Callable[[Any, Any], Any]
    """`targets(predictions, batch)`."""
    sums: Callable[[Any, Any, Any], dict[str, Sums]]
    """`sums(predictions, targets, batch)` by term."""
    weights: Callable[[Counters], tuple[dict[str, Tensor], dict[str, Tensor]]]
    """Effective and raw weights at these counters."""
    cut: Callable[[Any, int], Sequence[Any]]
    """`cut(batch, k)`: the batch in k parts."""
    merge_buffers: Callable[[Tree, Tree], Tree]
    """`merge_buffers(old, changed)`."""
    context: Callable[[Tree], contextlib.AbstractContextManager] = lambda params: contextlib.nullcontext()
    """Around forward and loss, given the parameters: autocast."""
    report: Callable[[Any], Metrics] = lambda predictions: {}
    """Metrics out of the predictions."""


class _Cut(NamedTuple):
    """What comes out of the differentiated function, beside the loss."""

    loss: LossOutput
    predictions: Any
    targets: Any
    batch: Any
    buffers: Tree
    hook_state: dict[str, Any]
    metrics: Metrics


def cut_batch(batch: Any, parts: int) -> Sequence[Any]:
    """A batch in parts: a tuple or list of `parts` batches as it is; by the batch's own `cut(parts)`; else along the first axis.

    Raises:
        ValueError: If a tensor is too short.
    """
    if parts == 1:
        return (batch,)
    if type(batch) in (tuple, list) and len(batch) == parts and not all(isinstance(x, Tensor) for x in batch):
        return batch
    if hasattr(batch, "cut"):
        return batch.cut(parts)
    leaves, spec = tree.flatten(batch)
    if short := [tuple(leaf.shape) for leaf in leaves if leaf.ndim and len(leaf) < parts]:
        raise ValueError(f"microbatches={parts}: a field of shape {short[0]} cannot be cut into so many parts")
    pieces = [torch.tensor_split(leaf, parts) if leaf.ndim else (leaf,) * parts for leaf in leaves]
    return [tree.unflatten(spec, part) for part in zip(*pieces, strict=True)]


def build_step(
    objective: Objective,
    optimizer: GradientTransform,
    hooks: Sequence[Hook] = (),
    microbatches: int = 1,
    engine: Engine = "auto",
    world_size: int = 1,
) -> Step:
    """Put the step together.

    Raises:
        HookError: If a hook cannot run inside the step.
        TransformError: If the chain needs an argument that the step does not pass.
        ValueError: If `microbatches` is not positive.
    """
    hooks = check_hooks(hooks)
    check_needs(optimizer.name, optimizer.needs, dict.fromkeys(EXTRAS))
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches}")
    known: set[str] = set()  # paths found unreached; a fact about the program, like a compilation cache

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        cuts = objective.cut(batch, microbatches)
        gradient, cut = _gradient(objective, optimizer, hooks, engine, state, cuts)
        if torch.compiler.is_dynamo_compiling():
            gradient = gradient._replace(unreached=tuple(known))  # Dynamo cannot find out; an earlier call outside it could
        _warn_unreached(gradient.unreached, known)
        ctx, states = _observe_gradient(hooks, optimizer, state, cut, gradient)
        trainable, rest = objective.split(state.params)
        result, opt_state = optimizer.update(gradient.grads, state.opt_state, trainable, **_extras(optimizer, state, cut.loss))
        gated = isinstance(result, Gated)
        applied = result.apply if gated else None
        new_trainable = apply_updates(trainable, result)
        if gradient.unreached:
            new_trainable, opt_state = _put_back(gradient.unreached, (trainable, state.opt_state), (new_trainable, opt_state))
        params = objective.join(new_trainable, rest)
        buffers = objective.merge_buffers(state.buffers, cut.buffers)
        ctx = ctx.replace(params=params, buffers=buffers, updates=result.updates if gated else result, applied=applied)
        states, ctx = run_hooks(hooks, Stage.AFTER_OPTIMIZER_STEP, states, ctx)
        counters = count_batch(state.counters, applied, world_size)
        metrics = {**ctx.metrics, **_update_metrics(optimizer, opt_state, gradient.grads, state, applied)}
        states, ctx = run_hooks(hooks, Stage.AFTER_BATCH, states, ctx.replace(counters=counters, metrics=metrics))
        if gated:  # a rejected batch leaves no trace in buffers and hooks either
            buffers, states = tree.where(~result.reject, (buffers, states), (state.buffers, state.hook_state))
        return TrainState(params, buffers, opt_state, states, counters, state.seed, state.aliases), ctx.metrics

    return step


# --- the gradient -------------------------------------------------------------------------------------------------


def _gradient(
    objective: Objective, optimizer: GradientTransform, hooks: Sequence[Hook], engine: Engine, state: TrainState, cuts: Sequence[Any]
) -> tuple[Gradient, _Cut]:
    """Loss and gradient over all cuts: every term is summed, and divided once by the denominator of the whole."""
    trainable, rest = objective.split(state.params)
    whole = _denominators(objective, state, cuts) if len(cuts) > 1 else None
    gradients, parts = [], []
    hook_state, buffers = state.hook_state, state.buffers
    for i, batch in enumerate(cuts):

        def differentiated(params: Tree, i: int = i, batch: Any = batch, hook_state: Any = hook_state, buffers: Tree = buffers) -> tuple[Tensor, _Cut]:
            cut = _run_cut(objective, hooks, state, objective.join(params, rest), buffers, hook_state, batch, i, whole, len(cuts))
            loss = cut.loss.total
            return loss if optimizer.scale_loss is None else optimizer.scale_loss(loss, state.opt_state), cut

        gradient = value_and_grad(differentiated, trainable, engine)
        cut = gradient.aux
        hook_state, buffers = cut.hook_state, objective.merge_buffers(buffers, cut.buffers)
        gradients.append(gradient)
        parts.append(cut)
    if len(parts) == 1:
        return gradients[0], parts[0]
    grads = gradients[0].grads
    for other in gradients[1:]:
        grads = tree.map(torch.add, grads, other.grads)
    unreached = tuple(path for path in gradients[0].unreached if all(path in other.unreached for other in gradients))
    return gradients[0]._replace(grads=grads, unreached=unreached), _join_cuts(parts, buffers)


def _run_cut(
    objective: Objective,
    hooks: Sequence[Hook],
    state: TrainState,
    params: Tree,
    buffers: Tree,
    states: dict[str, Any],
    batch: Any,
    index: int,
    whole: dict[str, Tensor] | None,
    num_cuts: int,
) -> _Cut:
    """The stages from BEFORE_BATCH to BEFORE_BACKWARD, on one cut."""
    is_cut = num_cuts > 1
    ctx = StepContext(Stage.BEFORE_BATCH, batch, state.counters, params, buffers, state.seed, {})
    states, ctx = run_hooks(hooks, Stage.BEFORE_BATCH, states, ctx)
    states, ctx = run_hooks(hooks, Stage.BEFORE_FORWARD, states, ctx)

    def make_key() -> Tensor:
        key = rng.fold_in(state.seed, state.counters.batch_count)
        return rng.leaf_key(key, index) if index else key

    with objective.context(state.params):
        predictions, changed = objective.forward(params, buffers, ctx.batch, make_key)
        states, ctx = run_hooks(hooks, Stage.AFTER_FORWARD, states, ctx.replace(predictions=predictions))
        ctx = ctx.replace(targets=objective.targets(ctx.predictions, ctx.batch))
        states, ctx = run_hooks(hooks, Stage.BEFORE_LOSS, states, ctx)
        sums = objective.sums(ctx.predictions, ctx.targets, ctx.batch)
    weights, raw = objective.weights(state.counters)
    shares = sums if whole is None else {name: part._replace(denominator=whole[name]) for name, part in sums.items()}
    loss = LossOutput(total_loss(shares, weights), sums, weights, raw, {})
    states, after = run_hooks(hooks, Stage.AFTER_LOSS, states, ctx.replace(loss=loss), cut=is_cut)
    if is_cut and after.loss.penalties:  # each cut carries its share, so that the whole counts a penalty once
        extra = sum_of(after.loss.penalties.values())
        after = after.replace(loss=dataclasses.replace(after.loss, total=after.loss.total - extra + extra / num_cuts))
    states, ctx = run_hooks(hooks, Stage.BEFORE_BACKWARD, states, after, cut=is_cut)
    metrics = {**ctx.metrics, **objective.report(ctx.predictions)}
    return _Cut(ctx.loss, ctx.predictions, ctx.targets, ctx.batch, changed, states, metrics)


def _denominators(objective: Objective, state: TrainState, cuts: Sequence[Any]) -> dict[str, Tensor] | None:
    """Denominator of each term over all cuts, from a forward pass that leaves no trace (dead code where a graph is compiled)."""
    key = rng.fold_in(state.seed, state.counters.batch_count)
    found = []
    for batch in cuts:
        with objective.context(state.params):
            predictions, _ = objective.forward(state.params, state.buffers, batch, lambda: key)
            sums = objective.sums(predictions, objective.targets(predictions, batch), batch)
        found.append({name: part.denominator.detach() for name, part in sums.items()})
    return {name: sum_of(cut[name] for cut in found) for name in found[0]}


def _join_cuts(parts: Sequence[_Cut], buffers: Tree) -> _Cut:
    """One record of the whole batch: sums merged, totals added, metrics of hooks averaged, the rest as a tuple by cut."""
    last = parts[-1]
    sums = {name: merge_sums([part.loss.sums[name] for part in parts]) for name in last.loss.sums}
    total = sum_of(part.loss.total for part in parts)
    loss = dataclasses.replace(last.loss, total=total, sums=sums)
    metrics = {name: sum_of(part.metrics[name] for part in parts) / len(parts) for name in last.metrics}
    together = [tuple(getattr(part, field) for part in parts) for field in ("predictions", "targets", "batch")]
    return _Cut(loss, *together, buffers, last.hook_state, metrics)


# --- around the update --------------------------------------------------------------------------------------------


def _observe_gradient(
    hooks: Sequence[Hook], optimizer: GradientTransform, state: TrainState, cut: _Cut, gradient: Gradient
) -> tuple[StepContext, dict[str, Any]]:
    """The stages AFTER_BACKWARD and BEFORE_OPTIMIZER_STEP, with the gradient as it is without loss scaling."""
    ctx = StepContext(
        Stage.AFTER_BACKWARD,
        cut.batch,
        state.counters,
        state.params,
        state.buffers,
        state.seed,
        {**_loss_metrics(cut.loss), **cut.metrics},
        predictions=cut.predictions,
        targets=cut.targets,
        loss=cut.loss,
    )
    if not any({Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP, Stage.AFTER_BATCH} & hook.stages for hook in hooks):
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


def _extras(optimizer: GradientTransform, state: TrainState, loss: LossOutput) -> dict[str, Any]:
    """What the chain gets. The denominator is that of the first term: exact for a loss of one term, a weight by samples otherwise."""
    extras: dict[str, Any] = {"value": loss.total, "counters": state.counters}
    extras["denominator"] = next(iter(loss.sums.values())).denominator
    if "key" in optimizer.needs:
        extras["key"] = rng.fold_in(state.seed, state.counters.batch_count, purpose=rng.ROUNDING)
    return extras


def _put_back(paths: tuple[str, ...], old: Tree, new: Tree) -> Tree:
    """Leaves that the loss does not reach, and their optimizer state, as they were: no decay and no momentum moves them."""
    ends = tuple(f".{path}" for path in paths)
    return tree.map_with_path(lambda path, o, n: o if f".{path}".endswith(ends) else n, old, new)


def _warn_unreached(paths: tuple[str, ...], known: set[str]) -> None:
    if fresh := [path for path in paths if path not in known]:
        known.update(fresh)
        warnings.warn(f"the loss does not depend on {', '.join(fresh)}: left as they are, without weight decay or momentum", stacklevel=3)


def _loss_metrics(loss: LossOutput) -> Metrics:
    metrics = {"loss/total": loss.total}
    for name, value in loss.components.items():
        if name:  # a plain loss function has no named terms
            metrics |= {f"loss/{name}/unweighted": value, f"loss/{name}/weight": loss.weights[name]}
    return metrics | {f"loss/{name}": value for name, value in loss.penalties.items()}


def _update_metrics(optimizer: GradientTransform, opt_state: Any, grads: Tree, state: TrainState, applied: Tensor | None) -> Metrics:
    """`update/applied`, `update/grad_norm` and what the chain reports.

    Where a part of the chain sees the gradient of the whole update (after `accumulate`), its norm is the one reported with that update.
    """
    metrics = collect_metrics(opt_state, optimizer.name)
    inner = metrics.pop("update/grad_norm", None)
    if inner is None or applied is not None:
        norm = tree.global_norm(_unscaled(optimizer, state, grads))
        inner = norm if inner is None else torch.where(applied, inner.to(norm.dtype), norm)
    took = scalar_like(state.params, True, torch.bool) if applied is None else applied
    return {"update/applied": took, "update/grad_norm": inner, **metrics}


# --- from a plain loss function -----------------------------------------------------------------------------------


def make_step(
    loss_fn: Callable[[Tree, Any], Any], optimizer: GradientTransform, hooks: Sequence[Hook] = (), microbatches: int = 1
) -> Step:
    """Build the pure step `(state, batch) -> (state, metrics)` from a loss function.

    Args:
        loss_fn: `loss_fn(params, batch) -> scalar` or `(scalar, aux)`; pure. `params` is any tree. Tensors of a dict `aux` appear among
            the metrics. A scalar may be given as `Sums(numerator, denominator)`, which makes unequal cuts exact.
        optimizer: A transform or a chain.
        hooks: Run inside the step.
        microbatches: Cut each batch into so many equal parts (or give it as a tuple of that length) and take the mean of their losses.

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
        sizes = {tuple(leaf.shape[:1]) for part in cuts for leaf in tree.leaves(part) if leaf.ndim}
        if cuts is not batch and parts > 1 and len(sizes) > 1:
            raise ValueError(f"microbatches={parts}: parts of unequal sizes {sorted(sizes)}; the mean of their losses would weigh samples unequally")
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
    """
    copied = tree.map(lambda p: p.detach().clone(), params)
    for path, leaf in tree.items(copied):
        if trainable is None and not (leaf.is_floating_point() or leaf.is_complex()):
            raise TypeError(f"params.{path} has dtype {leaf.dtype}, which has no gradient; keep it in the batch, or close over it")
    leaves = tree.leaves(copied)
    device = leaves[0].device if leaves else None
    opt_state = optimizer.init(copied if trainable is None else trainable)
    bare = TrainState(
        copied, {} if buffers is None else buffers, opt_state, {}, zero_counters(device), torch.tensor(seed, dtype=torch.int64, device=device)
    )
    return dataclasses.replace(bare, hook_state={hook.name: hook.init(bare) for hook in check_hooks(hooks)})


# --- between batches ----------------------------------------------------------------------------------------------


def end_epoch(state: TrainState) -> TrainState:
    """Close an epoch: `epoch_count` advances, `epoch_step_count` returns to 0. Pure."""
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
    told = _tell(state.opt_state, "observe", torch.as_tensor(value))
    if told is state.opt_state:
        raise ValueError("observe: no transform in this optimizer waits for a validation value; add reduce_on_plateau(driven_by='validation')")
    return dataclasses.replace(state, opt_state=told)


def observes(state: TrainState) -> bool:
    """Whether some part of the optimizer waits for a validation value."""
    return bool(_having(state.opt_state, "observe"))


def _having(node: Any, method: str) -> bool:
    if callable(getattr(type(node), method, None)):
        return True
    return any(_having(child, method) for _, child in children(node) if not isinstance(child, Tensor))


def _tell(node: Any, method: str, *args: Any) -> Any:
    """Replace every part of a state that has the method by what the method returns; the same object if there is none."""
    if callable(getattr(type(node), method, None)):
        return getattr(node, method)(*args)
    if isinstance(node, dict):
        new = {key: _tell(child, method, *args) for key, child in node.items()}
        return node if all(new[key] is node[key] for key in node) else new
    if hasattr(node, "_fields"):
        children = [_tell(child, method, *args) for child in node]
        return node if all(a is b for a, b in zip(children, node, strict=True)) else type(node)(*children)
    if hasattr(node, "__dataclass_fields__"):
        new = {name: _tell(getattr(node, name), method, *args) for name in node.__dataclass_fields__}
        return node if all(new[name] is getattr(node, name) for name in new) else type(node)(**new)
    return node
