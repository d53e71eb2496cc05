"""How a batch becomes a loss and a gradient, cut into parts or not: every term is a sum, divided once by the count of the whole.

An `Objective` says how predictions and loss come about. The stages from BEFORE_BATCH to BEFORE_BACKWARD run here, once for each cut;
what follows on the gradient is in `step.py`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import rng, tree
from .grad import Engine, Gradient, Gradients, value_and_grad
from .hook import Hook, Stage, StepContext, run_hooks
from .loss import LossOutput, Sums, divide, merge_sums, sum_of, total_loss
from .ranks import ALONE, Ranks
from .schedule import scalar_like
from .state import Counters, TrainState
from .transform import GradientTransform
from .tree import Tree

Metrics = dict[str, Tensor]
Differentiated = TypeVar("Differentiated", Gradient, Gradients)


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
    ranks: Ranks = ALONE
    """Who else shares the batch."""
    report: Callable[[Any], Metrics] = lambda predictions: {}
    """Metrics out of the predictions."""
    unreached: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda found: found
    """Paths of leaves that the latest backward pass did not come to, given those that autograd calls so."""
    combine: Callable[[Sequence[Tree], Sequence[Tensor]], Tree] | None = None
    """`combine(gradients, weights)`: one gradient out of those of the terms; None: that of the weighted sum."""


class Cut(NamedTuple):
    """What comes out of the differentiated function, beside the loss."""

    loss: LossOutput
    predictions: Any
    targets: Any
    batch: Any
    buffers: Tree
    hook_state: dict[str, Any]
    metrics: Metrics
    share: dict[str, Sums]  # by term, the sum over this cut on this rank with the denominator of the whole: what is differentiated


def own_copy(batch: Any) -> Any:
    """The batch in memory of its own: models call `requires_grad_` on what they are given, or write into it."""
    return tree.map(lambda x: x.clone() if isinstance(x, Tensor) else x, batch)


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


def gradient_over_cuts(
    objective: Objective, optimizer: GradientTransform, hooks: Sequence[Hook], engine: Engine, state: TrainState, cuts: Sequence[Any]
) -> tuple[Gradient, Cut]:
    """Loss and gradient over all cuts: every term is summed, and divided once by its denominator over the whole batch.

    The loss of a single term is divided at the end. Several terms need all denominators before the first gradient; and so does a hook
    that looks at the loss of a cut.
    """
    trainable, rest = objective.split(state.params)
    ranks = objective.ranks

    def differentiate(share: Share, carried: TrainState) -> Gradient:
        def differentiated(params: Tree) -> tuple[Tensor, Cut]:
            cut = run_cut(objective, hooks, dataclasses.replace(carried, params=objective.join(params, rest)), share)
            loss = cut.loss.total
            return loss if optimizer.scale_loss is None else optimizer.scale_loss(loss, state.opt_state), cut

        gradient = value_and_grad(differentiated, trainable, engine)
        return gradient._replace(unreached=objective.unreached(gradient.unreached))

    if len(cuts) == 1:
        gradient = differentiate(Share(cuts[0], 0, 1, None), state)
        cut = gradient.aux
        return gradient, reported(cut, cut.loss.sums) if ranks.world_size > 1 else cut
    terms = objective.weights(state.counters)[0]
    divide_at_end = len(terms) == 1 and not any({Stage.AFTER_LOSS, Stage.BEFORE_BACKWARD} & hook.stages for hook in hooks)
    whole = (
        {name: scalar_like(trainable, 1.0) for name in terms} if divide_at_end else denominators_over_cuts(objective, hooks, state, cuts)
    )
    gradients = over_cuts(objective, state, cuts, whole, differentiate)
    grads = tree.map(lambda *leaves: sum_of(leaves), *(gradient.grads for gradient in gradients))
    cut = join_cuts(objective, state, [gradient.aux for gradient in gradients])
    sums = sums_over_ranks(ranks, cut.loss.sums)
    if divide_at_end:
        (part,) = sums.values()
        factor = divide(torch.ones_like(part.denominator), part.denominator)
        grads = tree.map(lambda g: g * factor.to(g.dtype), grads)
    return gradients[0]._replace(grads=grads, unreached=never_reached(gradients)), reported(cut, sums)


class Share(NamedTuple):
    """One cut, and what it must know of the whole."""

    batch: Any
    number: int
    num_cuts: int
    denominators: dict[str, Tensor] | None  # of the whole batch, by term; None: the batch is not cut


def over_cuts(
    objective: Objective,
    state: TrainState,
    cuts: Sequence[Any],
    whole: dict[str, Tensor] | None,
    differentiate: Callable[[Share, TrainState], Differentiated],
) -> list[Differentiated]:
    """Differentiate cut after cut; buffers and hook states of one go into the next."""
    found, carried = [], state
    for number, batch in enumerate(cuts):
        one = differentiate(Share(batch, number, len(cuts), whole), carried)
        buffers = objective.merge_buffers(carried.buffers, one.aux.buffers)
        carried = dataclasses.replace(carried, buffers=buffers, hook_state=one.aux.hook_state)
        found.append(one)
    return found


def never_reached(gradients: Sequence[Gradient | Gradients]) -> tuple[str, ...]:
    """Paths of leaves that no cut reaches."""
    return tuple(path for path in gradients[0].unreached if all(path in other.unreached for other in gradients))


def sums_over_ranks(ranks: Ranks, sums: dict[str, Sums]) -> dict[str, Sums]:
    """Numerators and denominators over all ranks, by one sum of a short vector; samples stay those of this rank."""
    if ranks.world_size == 1:
        return sums
    parts = list(sums.values())
    flat = ranks.sum(torch.stack([x.detach().to(torch.float64) for part in parts for x in (part.numerator, part.denominator)]))
    pairs = [flat[2 * i : 2 * i + 2].to(part.numerator.dtype) for i, part in enumerate(parts)]
    whole = [Sums(pair[0], pair[1], part.per_sample) for pair, part in zip(pairs, parts, strict=True)]
    return dict(zip(sums, whole, strict=True))


def reported(cut: Cut, sums: dict[str, Sums]) -> Cut:
    """The same cut, its loss that of the whole batch: what was differentiated is a share of it."""
    total = total_loss(sums, cut.loss.weights)
    for penalty in cut.loss.penalties.values():
        total = total + penalty
    return cut._replace(loss=dataclasses.replace(cut.loss, total=total, sums=sums))


class _Sums(NamedTuple):
    """Where a cut stands before its loss."""

    hook_state: dict[str, Any]
    ctx: StepContext
    buffers: Tree  # changed ones
    sums: dict[str, Sums]


def _sums_of_cut(objective: Objective, hooks: Sequence[Hook], state: TrainState, share: Share) -> _Sums:
    """The stages from BEFORE_BATCH to BEFORE_LOSS, on one cut, at the parameters of `state`."""
    ctx = StepContext(Stage.BEFORE_BATCH, own_copy(share.batch), state.counters, state.params, state.buffers, state.seed, {})
    states, ctx = run_hooks(hooks, Stage.BEFORE_BATCH, state.hook_state, ctx)
    states, ctx = run_hooks(hooks, Stage.BEFORE_FORWARD, states, ctx)

    def make_key() -> Tensor:
        key = rng.fold_in(state.seed, state.counters.batch_count, rank=objective.ranks.rank)
        return rng.child_key(key, share.number) if share.number else key

    with objective.context(state.params):
        predictions, changed = objective.forward(state.params, state.buffers, ctx.batch, make_key)
        states, ctx = run_hooks(hooks, Stage.AFTER_FORWARD, states, ctx.replace(predictions=predictions))
        ctx = ctx.replace(targets=objective.targets(ctx.predictions, ctx.batch))
        states, ctx = run_hooks(hooks, Stage.BEFORE_LOSS, states, ctx)
        return _Sums(states, ctx, changed, objective.sums(ctx.predictions, ctx.targets, ctx.batch))


def run_cut(objective: Objective, hooks: Sequence[Hook], state: TrainState, share: Share) -> Cut:
    """The stages from BEFORE_BATCH to BEFORE_BACKWARD, on one cut, at the parameters of `state`."""
    ranks = objective.ranks
    num_shares = share.num_cuts * ranks.world_size
    states, ctx, changed, sums = _sums_of_cut(objective, hooks, state, share)
    weights, raw = objective.weights(state.counters)
    seen, whole = sums, share.denominators
    if whole is None:
        seen = sums_over_ranks(ranks, sums)
        whole = {name: part.denominator for name, part in seen.items()}
    share_of_sums = {name: part._replace(denominator=whole[name]) for name, part in sums.items()}
    own_share = total_loss(share_of_sums, weights)
    loss = LossOutput(own_share, seen, weights, raw, {})
    states, after = run_hooks(hooks, Stage.AFTER_LOSS, states, ctx.replace(loss=loss), cut=num_shares > 1)
    assert after.loss is not None
    if num_shares > 1 and after.loss.penalties:  # each share carries its part, so that the whole counts a penalty once
        penalty = sum_of(after.loss.penalties.values()) / num_shares
        after = after.replace(loss=dataclasses.replace(after.loss, total=own_share + penalty))
    states, ctx = run_hooks(hooks, Stage.BEFORE_BACKWARD, states, after, cut=num_shares > 1)
    assert ctx.loss is not None
    metrics = {**ctx.metrics, **objective.report(ctx.predictions)}
    return Cut(ctx.loss, ctx.predictions, ctx.targets, ctx.batch, changed, states, metrics, share_of_sums)


def denominators_over_cuts(objective: Objective, hooks: Sequence[Hook], state: TrainState, cuts: Sequence[Any]) -> dict[str, Tensor]:
    """Denominator of each term over all cuts, from a forward pass that leaves no trace (dead code where a graph is compiled)."""
    found, carried = [], state
    for i, batch in enumerate(cuts):
        states, _, changed, sums = _sums_of_cut(objective, hooks, carried, Share(batch, i, len(cuts), None))
        carried = dataclasses.replace(carried, buffers=objective.merge_buffers(carried.buffers, changed), hook_state=states)
        found.append({name: Sums(part.numerator.detach(), part.denominator.detach()) for name, part in sums.items()})
    whole = {name: merge_sums([cut[name] for cut in found]) for name in found[0]}
    return {name: part.denominator for name, part in sums_over_ranks(objective.ranks, whole).items()}


def join_cuts(objective: Objective, state: TrainState, parts: Sequence[Cut]) -> Cut:
    """One record of the whole batch: sums merged, metrics of hooks averaged, the rest as a tuple by cut."""
    if len(parts) == 1:
        return parts[0]
    last, buffers = parts[-1], state.buffers
    for part in parts:
        buffers = objective.merge_buffers(buffers, part.buffers)
    sums = {name: merge_sums([part.loss.sums[name] for part in parts]) for name in last.loss.sums}
    loss = dataclasses.replace(last.loss, sums=sums)
    metrics = {name: sum_of(part.metrics[name] for part in parts) / len(parts) for name in last.metrics}
    predictions, targets, batches = (tuple(getattr(part, field) for part in parts) for field in ("predictions", "targets", "batch"))
    return Cut(loss, predictions, targets, batches, buffers, last.hook_state, metrics, last.share)
