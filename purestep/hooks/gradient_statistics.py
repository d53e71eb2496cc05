"""What can be said about gradients and updates: norms, ratios to the weights, where they are not finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook, Stage, StepContext
from ..core.loss import divide
from ..core.tree import Tree


def gradient_norm(name: str = "gradient_norm") -> Hook:
    """Report the Euclidean norm over all gradients of the batch, without loss scaling, as metric `<name>`.

    `update/grad_norm` is that of the whole window where a chain accumulates; this one is each batch's own.
    """
    return _observing(name, Stage.AFTER_BACKWARD, lambda ctx: {"": tree.global_norm(ctx.grads)})


def layer_gradient_norms(name: str = "layer_gradient_norm") -> Hook:
    """Report the norm of the gradients of each layer, as metrics `<name>/<layer>`; a layer is a path without its last key."""
    return _observing(name, Stage.AFTER_BACKWARD, lambda ctx: {layer: tree.global_norm(g) for layer, g in _by_layer(ctx.grads).items()})


def update_ratios(name: str = "update_ratio") -> Hook:
    """Report `|update| / |weights|` of each layer, as metrics `<name>/<layer>`.

    About 1e-3 is healthy for many networks. The weights are those after the update; 0 where they are all zero, and where the update
    was vetoed.
    """

    def measure(ctx: StepContext) -> dict[str, Tensor]:
        weights = dict(tree.items(ctx.params))
        layers = _by_layer(ctx.updates)
        return {
            layer: divide(tree.global_norm(updates), tree.global_norm({path: weights[path] for path in updates}))
            for layer, updates in layers.items()
        }

    return _observing(name, Stage.AFTER_OPTIMIZER_STEP, measure)


def nonfinite_location(name: str = "nonfinite") -> Hook:
    """Report where NaN or infinity first appears.

    Metrics, int64: `<name>/loss` is 1 if the loss is not finite, else 0; `<name>/predictions` and `<name>/gradients` are the index of
    the first bad leaf, -1 if there is none. The leaf of index `i` is called `ps.tree.paths(state.params)[i]`, or, for predictions, is
    the `i`-th of `ps.tree.leaves(predictions)`.
    """

    def measure(ctx: StepContext) -> dict[str, Tensor]:
        none = torch.full_like(ctx.counters.batch_count, -1)
        number = {path: i for i, path in enumerate(tree.paths(ctx.params))}
        predictions = dict(enumerate(tree.leaves(ctx.predictions)))
        return {
            "loss": (~torch.isfinite(ctx.loss.total)).to(torch.int64),  # type: ignore[union-attr]
            "predictions": _first_bad(predictions, none),
            "gradients": _first_bad({number[path]: grad for path, grad in tree.items(ctx.grads)}, none),
        }

    return _observing(name, Stage.AFTER_BACKWARD, measure)


def _observing(name: str, stage: Stage, measure: Any) -> Hook:
    """A hook without state that adds metrics at one stage."""

    def update(state: tuple[()], ctx: StepContext) -> tuple[tuple[()], StepContext]:
        found = {f"{name}/{key}" if key else name: value for key, value in measure(ctx).items()}
        return state, ctx.replace(metrics={**ctx.metrics, **found})

    return Hook(name, frozenset({stage}), lambda state: (), update)


def _by_layer(values: Tree) -> dict[str, dict[str, Tensor]]:
    """Leaves by path, grouped by the path of the module that holds them."""
    layers: dict[str, dict[str, Tensor]] = {}
    for path, leaf in tree.items(values):
        layers.setdefault(path.rpartition(".")[0], {})[path] = leaf
    return layers


def _first_bad(leaves: Mapping[int, Any], none: Tensor) -> Tensor:
    found = none
    for i in sorted(leaves, reverse=True):
        if isinstance(leaves[i], Tensor) and (leaves[i].is_floating_point() or leaves[i].is_complex()):
            found = torch.where(torch.isfinite(leaves[i]).all(), found, i)
    return found
