"""Fast weights that are pulled back to slow ones every few steps: `lookahead`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import POSITIVE_FRACTION, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import widen
from .parameters import wide_params
from .wrapping import close_gate, open_gate


class LookaheadState(NamedTuple):
    """State of `lookahead`."""

    fast_state: Any  # of the inner optimizer
    slow: Tree  # slow parameters, float32 or wider
    steps_since_sync: Tensor  # 0-d int64


def lookahead(fast_optimizer: GradientTransform, sync_period: int, slow_step_size: float, reset_state: bool = False) -> GradientTransform:
    """Let an optimizer run ahead, and every `sync_period` steps go back part of the way.

        every step:  p <- p + fast update;      every sync_period-th:  s <- s + slow_step_size (p - s);  p <- s

    The parameters are the fast ones; the slow ones are kept in the state (optax keeps both in the parameters; the numbers are the
    same).

    Args:
        fast_optimizer: The inner optimizer.
        sync_period: Steps between two synchronisations; at least 1.
        slow_step_size: In (0, 1].
        reset_state: Start the inner optimizer anew after each synchronisation.

    Reference:
        Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", 2019, Algorithm 1. arXiv:1907.08610
    """
    check_whole("lookahead", at_least(1), sync_period=sync_period)
    check_numbers("lookahead", POSITIVE_FRACTION, slow_step_size=slow_step_size)

    def init(params: Tree) -> LookaheadState:
        slow = tree.map(lambda p: torch.clone(widen([p])[0]), params)
        return LookaheadState(fast_optimizer.init(params), slow, scalar_like(params, 0, torch.int64))

    def update(updates: Tree, state: LookaheadState, params: Tree = None, **extra: Any) -> tuple[Any, LookaheadState]:
        returned, fast_state = fast_optimizer.update(updates, state.fast_state, params, **extra)
        steps, apply, reject = open_gate(returned)
        leaves, structure = tree.flatten(steps)
        slow = tree.leaves(state.slow)
        ahead = leafwise.sub(leafwise.add(wide_params(params, "lookahead"), leaves), slow)
        sync = state.steps_since_sync == sync_period - 1
        new_slow = [torch.where(sync, s + slow_step_size * d, s) for s, d in zip(slow, ahead, strict=True)]
        out = [torch.where(sync, u - (1 - slow_step_size) * d, u) for u, d in zip(leaves, ahead, strict=True)]
        if reset_state:
            fast_state = tree.where(sync, fast_optimizer.init(params), fast_state)
        new = LookaheadState(fast_state, tree.unflatten(structure, new_slow), (state.steps_since_sync + 1) % sync_period)
        if apply is not None:
            new = LookaheadState(fast_state, *tree.where(apply, tuple(new[1:]), tuple(state[1:])))
        return close_gate(tree.unflatten(structure, out), apply, reject), new

    return GradientTransform(init, update, "lookahead", fast_optimizer.needs, _inner_scale_loss(fast_optimizer))


def _inner_scale_loss(inner: GradientTransform):
    if inner.scale_loss is None:
        return None
    scale = inner.scale_loss
    return lambda loss, state: scale(loss, state.fast_state)
