"""Terms of the loss that depend on the parameters alone: `penalty` and `elastic_weight_consolidation`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook, Stage, StepContext
from ..core.loss import sum_of
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam
from ..core.state import TrainState
from ..core.tree import Tree
from ..errors import HookError


def penalty(fn: Callable[[Tree], Tensor], name: str = "penalty") -> Hook:
    """Add `fn(params)` to the loss, as metric `loss/<name>`; counted once, however the batch is cut.

    Args:
        fn: Pure, of all parameters of the state; returns a 0-d tensor.
        name: Of the hook and the term.
    """

    def update(state: tuple[()], ctx: StepContext) -> tuple[tuple[()], StepContext]:
        return state, _with_penalty(ctx, name, fn(ctx.params))

    return Hook(name, frozenset({Stage.AFTER_LOSS}), lambda state: (), update)


class ConsolidationState(NamedTuple):
    """State of `elastic_weight_consolidation`, by path of the parameter."""

    anchor: dict[str, Tensor]
    fisher: dict[str, Tensor]
    strength: Hyperparam


def elastic_weight_consolidation(
    fisher: Tree, strength: ScalarOrSchedule, anchor: Tree = None, name: str = "elastic_weight_consolidation"
) -> Hook:
    """Hold the parameters near those of an earlier task, each as firmly as that task needs it.

    Adds `strength / 2 sum fisher (params - anchor)^2` to the loss, as metric `loss/<name>`.

    Args:
        fisher: Diagonal of the Fisher matrix of the earlier task: a tree like the parameters, or `{path: tensor}` for some of them.
        strength: Not negative; a number (a leaf of the state) or a schedule of the batches so far.
        anchor: The parameters of the earlier task, in the same form; those at `init` by default.
        name: Of the hook and the term.

    Raises:
        HookError: At `init`, if a path of `fisher` is no parameter, lacks an anchor, or differs in shape.

    Reference:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017, equation 3. arXiv:1612.00796
    """

    def init(state: TrainState) -> ConsolidationState:
        params = dict(tree.items(state.params))
        importance = {path: leaf.detach().clone() for path, leaf in tree.items(fisher)}
        points = dict(tree.items(state.params if anchor is None else anchor))
        for path, leaf in importance.items():
            for what, there in (("parameter", params), ("anchor", points)):
                if path not in there:
                    raise HookError(f"hook {name!r}: fisher has {path!r}, which is no {what}; there are {sorted(there)[:5]}")
                if there[path].shape != leaf.shape:
                    raise HookError(f"hook {name!r}: {path} is {tuple(leaf.shape)} in fisher, {tuple(there[path].shape)} as {what}")
        kept = {path: points[path].detach().clone() for path in importance}
        return ConsolidationState(kept, importance, init_hyperparam(strength, state.params))

    def update(state: ConsolidationState, ctx: StepContext) -> tuple[ConsolidationState, StepContext]:
        used = next_hyperparam(strength, state.strength)
        params = dict(tree.items(ctx.params))
        terms = [_energy(params[path], state.anchor[path], fisher) for path, fisher in state.fisher.items()]
        return state._replace(strength=used), _with_penalty(ctx, name, used.value / 2.0 * sum_of(terms))

    return Hook(name, frozenset({Stage.AFTER_LOSS}), init, update)


def _energy(param: Tensor, anchor: Tensor, fisher: Tensor) -> Tensor:
    wide = torch.promote_types(param.dtype, torch.float32)
    return (fisher.to(wide) * (param.to(wide) - anchor.to(wide)).square()).sum()


def _with_penalty(ctx: StepContext, name: str, value: Tensor) -> StepContext:
    return ctx.replace(loss=ctx.loss.with_penalty(name, value.to(ctx.loss.total.dtype)))  # type: ignore[union-attr]
