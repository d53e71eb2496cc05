"""The gradient of a batch term by term, put together by a function of the user: one forward pass, one backward for each term.

Without such a function, `objective.py` differentiates the weighted sum at once. Functions to put gradients together live in
`losses/gradient_surgery.py`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.eager_transforms as functorch
from torch import Tensor

from . import tree
from .grad import Engine, Gradient, runs_transformed
from .hook import Hook, Stage
from .loss import divide, sum_of, total_loss
from .objective import Cut, Objective, Share, denominators_over_cuts, join_cuts, reported, run_cut
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

    What hooks add to the loss beside its terms is differentiated by itself and added to the combination.
    """
    trainable, rest = objective.split(state.params)
    whole = None if len(cuts) == 1 else denominators_over_cuts(objective, hooks, state, cuts)
    changed = any({Stage.AFTER_LOSS, Stage.BEFORE_BACKWARD} & hook.stages for hook in hooks)
    scale = None if optimizer.scale_loss is None else optimizer.scale_loss(scalar_like(trainable, 1.0, torch.float32), state.opt_state)
    gradients, parts, carried = [], [], state
    for number, batch in enumerate(cuts):
        share = Share(batch, number, len(cuts), whole)

        def differentiated(params: Tree, share: Share = share, carried: TrainState = carried) -> tuple[list[Tensor], Cut]:
            cut = run_cut(objective, hooks, dataclasses.replace(carried, params=objective.join(params, rest)), share)
            values = _parts_of_loss(cut, whole, changed)
            return [value if scale is None else value * scale.to(value.dtype) for value in values], cut

        gradient = _several_gradients(differentiated, trainable, engine)
        cut = gradient.aux
        buffers = objective.merge_buffers(carried.buffers, cut.buffers)
        carried = dataclasses.replace(carried, buffers=buffers, hook_state=cut.hook_state)
        gradients.append(gradient)
        parts.append(cut)
    cut = parts[0] if len(cuts) == 1 else join_cuts(parts, carried.buffers)
    cut = cut if len(cuts) == 1 else reported(cut, cut.loss.sums)
    by_term = [tree.map(lambda *leaves: sum_of(leaves), *same) for same in zip(*(found.grads for found in gradients), strict=True)]
    combined = _combine(objective.combine, by_term, list(objective.weights(state.counters)[0].values()), scale)
    unreached = tuple(path for path in gradients[0].unreached if all(path in found.unreached for found in gradients))
    return Gradient(cut.loss.total, None, combined, unreached), cut


def _parts_of_loss(cut: Cut, whole: dict[str, Tensor] | None, changed: bool) -> list[Tensor]:
    """Mean of each term; and what hooks have added, if they can have added something."""
    sums = {name: part if whole is None else part._replace(denominator=whole[name]) for name, part in cut.loss.sums.items()}
    values = [divide(part.numerator, part.denominator) for part in sums.values()]
    return [*values, cut.loss.total - total_loss(sums, cut.loss.weights)] if changed else values


def _combine(combine: CombineGradients | None, gradients: list[Tree], weights: list[Tensor], scale: Tensor | None) -> Tree:
    """The combination of gradients of the loss itself, scaled again, and of what hooks have added."""
    assert combine is not None
    terms, others = gradients[: len(weights)], gradients[len(weights) :]
    if scale is not None:
        terms = [tree.map(lambda g: g / scale.to(g.dtype), one) for one in terms]
    found = combine(terms, weights)
    if tree.structure(found) != tree.structure(terms[0]):
        raise ValueError(
            f"combine_gradients: expected a tree with the leaves {', '.join(tree.paths(terms[0]))}, as each of the gradients has, "
            f"got {', '.join(tree.paths(found))}"
        )
    if scale is not None:
        found = tree.map(lambda g: g * scale.to(g.dtype), found)
    return tree.map(lambda *leaves: sum_of(leaves), found, *others)


# --- one forward pass, several backwards ----------------------------------------------------------------------------


class _Gradients(NamedTuple):
    """Gradients of several values of one function."""

    aux: Any
    grads: list[Tree]  # one for each value
    unreached: tuple[str, ...]  # paths of leaves that no value depends on


def _several_gradients(fn: Callable[[Tree], tuple[list[Tensor], Any]], params: Tree, engine: Engine) -> _Gradients:
    """As `value_and_grad`, for a function that returns several 0-d values beside its aux."""
    leaves, spec = tree.flatten(params)
    side_door: list[Any] = []  # transforms return tensors only: structure and other leaves leave by here

    def flat_fn(flat: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values, aux = fn(tree.unflatten(spec, flat))
        parts, aux_spec = tree.flatten(aux)
        side_door[:] = [aux_spec, [None if isinstance(part, Tensor) else part for part in parts]]
        return values, [part.detach() for part in parts if isinstance(part, Tensor)]

    if torch.compiler.is_dynamo_compiling():
        values, pull, tensors = torch.func.vjp(flat_fn, leaves, has_aux=True)  # type: ignore[misc]
        seeds = [[torch.ones_like(v) if v is value else torch.zeros_like(v) for v in values] for value in values]
        found = [pull(seed)[0] for seed in seeds]
    elif engine == "func" or (engine == "auto" and runs_transformed()):
        found, tensors = _in_a_level(flat_fn, leaves)
    else:
        with torch.enable_grad():
            found, tensors = _differentiate(flat_fn, [leaf.detach().requires_grad_() for leaf in leaves], create_graph=False)
    unreached = tuple(path for i, path in enumerate(tree.paths(params)) if all(one[i] is None for one in found))
    grads = [
        tree.unflatten(spec, [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, one, strict=True)]) for one in found
    ]
    aux_spec, others = side_door
    rest = iter(tensors)
    return _Gradients(tree.unflatten(aux_spec, [next(rest) if other is None else other for other in others]), grads, unreached)


def _differentiate(flat_fn: Callable, fresh: list[Tensor], create_graph: bool) -> tuple[list[Sequence[Tensor | None]], list[Tensor]]:
    values, tensors = flat_fn(fresh)
    if not any(value.requires_grad for value in values):
        raise ValueError("the loss depends on no trainable parameter; is the model called, and is nothing detached or under no_grad?")

    def slopes(value: Tensor) -> Sequence[Tensor | None]:
        if not value.requires_grad:
            return [None] * len(fresh)
        return torch.autograd.grad(value, fresh, allow_unused=True, retain_graph=True, create_graph=create_graph)

    return [slopes(value) for value in values], tensors


def _in_a_level(flat_fn: Callable, leaves: list[Tensor]) -> tuple[list[Sequence[Tensor | None]], list[Tensor]]:
    """The same inside a level of functorch, so that it composes with `vmap`; the public functions hide which leaves are unused."""
    with functorch.grad_increment_nesting() as level, torch.enable_grad():
        fresh = [functorch._create_differentiable(leaf, level) for leaf in functorch._wrap_all_tensors(leaves, level)]
        found, tensors = _differentiate(flat_fn, fresh, create_graph=True)
        out = lambda x: functorch._undo_create_differentiable((x,), level)[0]  # noqa: E731
        return [[None if g is None else out(g) for g in one] for one in found], [out(x) for x in tensors]
