"""The gradient of a batch term by term, put together by a function of the user: one forward pass, one backward for each term.

Without such a function, `objective.py` differentiates the weighted sum at once. Functions to put gradients together live in
`losses/gradient_surgery.py`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import tree
from .grad import Engine, Gradient, Gradients, values_and_grads
from .hook import Hook, Stage
from .loss import divide, sum_of, total_loss
from .objective import (
    Cut,
    Objective,
    Share,
    denominators_over_cuts,
    join_cuts,
    never_reached,
    over_cuts,
    reported,
    run_cut,
    sums_over_ranks,
)
from .schedule import scalar_like
from .state import TrainState
from .transform import GradientTransform
from .tree import Tree

CombineGradients = Callable[[Sequence[Tree], Sequence[Tensor]], Tree]
"""`combine(gradients, weights) -> gradient`: unweighted gradients of the terms, in their order, and their weights, 0-d float64."""


def gradient_by_terms(
    objective: Objective, optimizer: GradientTransform, hooks: Sequence[Hook], engine: Engine, state: TrainState, cuts: Sequence[Any]
) -> tuple[Gradient, Cut]:
    """As `gradient_over_cuts`, with the gradient that `objective.combine` makes of those of the terms over the whole batch.

    What hooks add to the loss beside its terms is differentiated by itself and added to the combination. Among several ranks the
    gradient of each term is summed over all before they are combined, at one more collective for each term.
    """
    trainable, rest = objective.split(state.params)
    ranks = objective.ranks
    whole = None if len(cuts) == 1 else denominators_over_cuts(objective, hooks, state, cuts)
    changed = any({Stage.AFTER_LOSS, Stage.BEFORE_BACKWARD} & hook.stages for hook in hooks)
    scale = None if optimizer.scale_loss is None else optimizer.scale_loss(scalar_like(trainable, 1.0, torch.float32), state.opt_state)

    def differentiate(share: Share, carried: TrainState) -> Gradients:
        def differentiated(params: Tree) -> tuple[list[Tensor], Cut]:
            cut = run_cut(objective, hooks, dataclasses.replace(carried, params=objective.join(params, rest)), share)
            values = _parts_of_loss(cut, changed)
            return [value if scale is None else value * scale.to(value.dtype) for value in values], cut

        return values_and_grads(differentiated, trainable, engine)

    gradients = over_cuts(objective, state, cuts, whole, differentiate)
    by_term = [tree.map(lambda *leaves: sum_of(leaves), *same) for same in zip(*(found.grads for found in gradients), strict=True)]
    weights = list(objective.weights(state.counters)[0].values())
    terms, others = by_term[: len(weights)], by_term[len(weights) :]
    combined = _combine(objective.combine, [ranks.sum_tree(term) for term in terms], weights, scale)
    # all ranks have the whole by now, of which each hands on its share: the chain will add over ranks
    share = tree.map(lambda *leaves: sum_of(leaves), tree.map(lambda g: g / ranks.world_size, combined), *others)
    cut = join_cuts(objective, state, [gradient.aux for gradient in gradients])
    cut = reported(cut, cut.loss.sums if whole is None else sums_over_ranks(ranks, cut.loss.sums))
    return Gradient(cut.loss.total, None, share, never_reached(gradients)), cut


def _parts_of_loss(cut: Cut, changed: bool) -> list[Tensor]:
    """Mean of each term, and what hooks have added, if they can have added something."""
    values = [divide(part.numerator, part.denominator) for part in cut.share.values()]
    return [*values, cut.loss.total - total_loss(cut.share, cut.loss.weights)] if changed else values


def _combine(combine: CombineGradients | None, terms: list[Tree], weights: list[Tensor], scale: Tensor | None) -> Tree:
    """The combination of gradients of the loss itself, scaled again."""
    assert combine is not None
    if scale is not None:
        terms = [tree.map(lambda g: g / scale.to(g.dtype), one) for one in terms]
    found = combine(terms, weights)
    if tree.paths(found) != tree.paths(terms[0]):
        raise ValueError(
            f"combine_gradients: expected a tree with the leaves {', '.join(tree.paths(terms[0]))}, as each of the gradients has, "
            f"got {', '.join(tree.paths(found))}"
        )
    return found if scale is None else tree.map(lambda g: g * scale.to(g.dtype), found)
