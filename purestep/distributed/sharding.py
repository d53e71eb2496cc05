"""Optimizers that work on parts of leaves: what each transform of a chain needs of the whole, and how it gets it.

Most look at one element at a time, and work on a part as they would on the whole. Gates and clipping look at norms, which are summed over
ranks. All others (whole matrices, masks over several leaves) get whole leaves, gathered for the moment; what they keep is cut again.
What a transform begins with is made from whole leaves and then cut: `SumOverRanksState.parts` says where.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.idle import Idle, busy_flags
from ..core.ranks import Ranks
from ..core.transform import Gated, GradientTransform, chain
from ..core.tree import Tree
from .parts import Cut, Cuts, cut_of, gather_parts, part_of, real, scatter_sum
from .reduction import SumOverRanksState, first_sum

ELEMENTWISE = frozenset(
    """accumulate add_decayed_weights clip freeze scale scale_by_adam scale_by_adamax scale_by_amsgrad scale_by_belief
    scale_by_learning_rate scale_by_lion scale_by_radam scale_by_rms scale_by_rss scale_by_schedule scale_by_sign scale_by_yogi
    sum_over_ranks trace""".split()
)
"""Names of transforms that treat every element on its own."""
BY_NORMS = frozenset("clip_by_global_norm dynamic_loss_scale skip_large_updates skip_nonfinite skip_spikes".split())
"""Names of transforms that look at norms of leaves only, and multiply a leaf by one number or leave it."""
BEFORE_PARTS = BY_NORMS | {"accumulate", "share_nonfinite", "sum_over_ranks"}
"""Names of transforms that keep little, and need not work on parts where whole updates are there."""


class Plan(NamedTuple):
    """What is in parts."""

    ranks: Ranks
    params: Tree  # trainable ones, whole, on the meta device
    cuts: Cuts  # of each of them
    whole_params: bool  # whether the chain is given whole parameters


class InParts(NamedTuple):
    """A transform of updates in parts; and the leaves of its state that are cut, by path below its name."""

    transform: GradientTransform
    cuts: dict[str, Cut]


def make_plan(params: Tree, ranks: Ranks, *, whole_params: bool) -> Plan:
    """The plan for trainable parameters on the meta device."""
    return Plan(ranks, params, [cut_of(leaf, ranks.world_size) for leaf in tree.leaves(params)], whole_params)


def in_parts(part: GradientTransform, plan: Plan) -> InParts:
    """The same transform for updates in parts, its state begun from whole leaves and cut afterwards."""
    if part.parts:
        keys = part.init(plan.params)  # a dict in the order of the parts
        inside = [in_parts(inner, plan) for inner in part.parts]
        cuts = {f"{key}.{path}": cut for key, inner in zip(keys, inside, strict=True) for path, cut in inner.cuts.items()}
        return InParts(chain(*(inner.transform for inner in inside), name=part.name), cuts)
    if part.name.removeprefix("masked_") in ELEMENTWISE or (part.name == "skip_spikes" and "value" in part.needs):
        return InParts(_elementwise(part, plan), grown(part.init(plan.params), part.init(longer(plan.params, plan.cuts))))
    if part.name in BY_NORMS:
        return InParts(_by_norms(part, plan), {})
    return _on_whole_leaves(part, plan)


def longer(params: Tree, cuts: Cuts) -> Tree:
    """The parameters, longer where they are cut."""
    leaves, structure = tree.flatten(params)
    return tree.unflatten(structure, [torch.cat([x, x], cut.axis) if cut else x for x, cut in zip(leaves, cuts, strict=True)])


def grown(state: Tree, after: Tree) -> dict[str, Cut]:
    """Where the leaves of a state are cut: what grows with the parameters is cut where it grows."""
    found = {}
    for (path, leaf), other in zip(tree.items(state), tree.leaves(after), strict=True):
        if axes := [axis for axis, (a, b) in enumerate(zip(leaf.shape, other.shape, strict=True)) if a != b]:
            found[path] = Cut(axes[0], leaf.shape[axes[0]])
    return found


def _cut(leaves: Tree, plan: Plan) -> Tree:
    flat, structure = tree.flatten(leaves)
    return tree.unflatten(structure, [part_of(leaf, cut, plan.ranks) for leaf, cut in zip(flat, plan.cuts, strict=True)])


def _elementwise(part: GradientTransform, plan: Plan) -> GradientTransform:
    if not plan.whole_params:
        return part

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Any, Any]:
        return part.update(updates, state, None if params is None else _cut(params, plan), **extra)

    return part._replace(update=update)


# --- norms --------------------------------------------------------------------------------------------------------


def norm_of_parts(plan: Plan) -> GradientTransform:
    """What stands in the place of `sum_over_ranks` where updates are summed already: it knows their norm."""

    def update(
        updates: Tree, state: SumOverRanksState, params: Tree = None, *, idle: Idle | None = None, **extra: Any
    ) -> tuple[Tree, SumOverRanksState]:
        leaves = tree.leaves(updates)
        flags = [] if idle is None else [busy_flags(idle, updates, torch.float64)]
        summed = plan.ranks.sum(torch.cat([_own_squares(leaves, plan), *flags]))
        squares, busy = summed[: len(leaves)], summed[len(leaves) :]
        norm = squares.sum().sqrt()
        return updates, SumOverRanksState(norm.to(state.norm.device), busy == 0 if flags else state.idle, state.parts)

    return GradientTransform(first_sum, update, "sum_over_ranks", same_on_all_ranks=frozenset({"updates"}))


def _leaf_norms(leaves: list[Tensor], plan: Plan) -> Tensor:
    """Norm of each whole leaf, float64, the same bits on every rank; not finite where an element is not."""
    return plan.ranks.sum(_own_squares(leaves, plan)).sqrt()


def _own_squares(leaves: list[Tensor], plan: Plan) -> Tensor:
    """What this rank's parts add to the squared norms."""
    own = torch.stack([torch.linalg.vector_norm(leaf, dtype=_widest(leaf)) for leaf in leaves])
    # what every rank holds is counted on one
    counted = [norm if cut or plan.ranks.rank == 0 else torch.zeros_like(norm) for norm, cut in zip(own.unbind(), plan.cuts, strict=True)]
    return torch.stack(counted).square()


def _widest(leaf: Tensor) -> torch.dtype:
    return torch.complex128 if leaf.is_complex() else torch.float64


def _by_norms(part: GradientTransform, plan: Plan) -> GradientTransform:
    """Show the transform one number for each leaf, its norm; what becomes of the number becomes of the leaf."""

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Any, Any]:
        leaves, structure = tree.flatten(updates)
        norms = list(_leaf_norms(leaves, plan).unbind())
        result, new = part.update(tree.unflatten(structure, norms), state, None, **extra)
        shown = tree.leaves(result.updates if isinstance(result, Gated) else result)
        out = tree.unflatten(structure, [_scaled(*triple) for triple in zip(leaves, norms, shown, strict=True)])
        return (result._replace(updates=out) if isinstance(result, Gated) else out), new

    return part._replace(update=update, same_on_all_ranks=part.same_on_all_ranks | {"verdict"})


def _scaled(leaf: Tensor, norm: Tensor, became: Tensor) -> Tensor:
    if became is norm:
        return leaf
    factor = torch.where(norm != 0, became / norm, 1.0)
    return leaf.to(torch.promote_types(leaf.dtype, torch.float32)) * factor.to(torch.promote_types(real(leaf).dtype, torch.float32))


# --- whole leaves -------------------------------------------------------------------------------------------------


def _on_whole_leaves(part: GradientTransform, plan: Plan) -> InParts:
    """Gather updates, state and parameters, run the transform on every rank, and keep this rank's parts."""
    kept = part.init(plan.params)
    state_cuts = [cut_of(leaf, plan.ranks.world_size) if isinstance(leaf, Tensor) else None for leaf in tree.leaves(kept)]

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Any, Any]:
        leaves, structure = tree.flatten(updates)
        held, state_structure = tree.flatten(state)
        own = [] if params is None or plan.whole_params else tree.leaves(params)
        whole = gather_parts([*leaves, *held, *own], [*plan.cuts, *state_cuts, *(plan.cuts if own else ())], plan.ranks)
        given = tree.unflatten(structure, whole[: len(leaves)])
        known = tree.unflatten(state_structure, whole[len(leaves) : len(leaves) + len(held)])
        params = tree.unflatten(structure, whole[len(leaves) + len(held) :]) if own else params
        result, new = part.update(given, known, params, **extra)
        out = _kept(result.updates if isinstance(result, Gated) else result, plan.cuts, plan.ranks)
        return (result._replace(updates=out) if isinstance(result, Gated) else out), _kept(new, state_cuts, plan.ranks)

    cuts = {path: cut for (path, _), cut in zip(tree.items(kept), state_cuts, strict=True) if cut is not None}
    return InParts(part._replace(update=update, same_on_all_ranks=part.same_on_all_ranks | {"verdict"}), cuts)


def _kept(leaves: Tree, cuts: Cuts, ranks: Ranks) -> Tree:
    """Parts in memory of their own, so that the whole can go."""
    flat, structure = tree.flatten(leaves)
    return tree.unflatten(structure, [part_of(x, cut, ranks).clone() if cut else x for x, cut in zip(flat, cuts, strict=True)])


# --- whole updates in, whole updates out ----------------------------------------------------------------------------


def with_sharded_end(optimizer: GradientTransform, plan: Plan) -> InParts:
    """An optimizer that contains `sum_over_ranks`, whose parts behind it and behind gates and clipping work on parts."""
    parts = optimizer.parts
    keys = list(optimizer.init(plan.params))
    number = next(i for i, part in enumerate(parts) if _sums(part))
    first = next((i for i in range(number + 1, len(parts)) if parts[i].name not in BEFORE_PARTS), len(parts))
    if first == len(parts):
        if not parts[number].parts:
            return InParts(optimizer, {})
        inner = with_sharded_end(parts[number], plan)
        cuts = {f"{keys[number]}.{path}": cut for path, cut in inner.cuts.items()}
        return InParts(chain(*parts[:number], inner.transform, *parts[number + 1 :], name=optimizer.name), cuts)
    inside = [in_parts(part, plan) for part in parts[first:]]
    cuts = {f"{key}.{path}": cut for key, inner in zip(keys[first:], inside, strict=True) for path, cut in inner.cuts.items()}
    ending = between([inner.transform for inner in inside], lambda updates: _cut(updates, plan), plan)
    return InParts(chain(*parts[:first], *ending, name=optimizer.name), cuts)


def with_scattered_sum(optimizer: InParts, plan: Plan) -> InParts:
    """A chain on parts for whole gradients of one rank: they are summed and cut before its first part, updates gathered after its last."""

    def summed(updates: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, scatter_sum(leaves, plan.cuts, plan.ranks))

    parts = between(list(optimizer.transform.parts), summed, plan)
    return InParts(chain(*parts, name=optimizer.transform.name), optimizer.cuts)


def between(parts: list[GradientTransform], cut: Callable[[Tree], Tree], plan: Plan) -> list[GradientTransform]:
    """Parts of a chain, the first of which is given what `cut` makes of the updates, the last of which hands on whole updates."""

    def from_whole(part: GradientTransform) -> GradientTransform:
        return part._replace(update=lambda updates, *args, **extra: part.update(cut(updates), *args, **extra))

    def to_whole(part: GradientTransform) -> GradientTransform:
        def update(updates: Tree, *args: Any, **extra: Any) -> tuple[Any, Any]:
            result, state = part.update(updates, *args, **extra)
            leaves, structure = tree.flatten(result.updates if isinstance(result, Gated) else result)
            whole = tree.unflatten(structure, gather_parts(leaves, plan.cuts, plan.ranks))
            return (result._replace(updates=whole) if isinstance(result, Gated) else whole), state

        return part._replace(update=update)

    *others, last = parts
    first, *rest = [*others, to_whole(last)]
    return [from_whole(first), *rest]


def _sums(part: GradientTransform) -> bool:
    return any(map(_sums, part.parts)) if part.parts else part.name == "sum_over_ranks"
