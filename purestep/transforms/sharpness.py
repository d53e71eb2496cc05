"""Sharpness-aware minimization: take the gradient where the loss nearby is worst, and `normalize`, which points the way there."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform, apply_updates, stateless
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .inner_transform import update_inner
from .moments import widen
from .parameters import wide_params


def normalize() -> GradientTransform:
    """Divide the updates by their joint Euclidean norm; zero updates stay zero.

    Reference:
        optax 0.2.8 `contrib.normalize`, where zero updates become NaN.
    """

    def normalized(updates: Tree, params: Tree) -> Tree:
        leaves, structure = tree.flatten(updates)
        norm = tree.global_norm(leaves)
        return tree.unflatten(structure, leafwise.div(widen(leaves), torch.where(norm > 0, norm, 1.0)))

    return stateless(normalized, "normalize")


class SamState(NamedTuple):
    """State of `sam`."""

    steps_since_sync: Tensor  # 0-d int64; 0: the parameters are the true ones, else they are on a detour
    opt: Any  # state of the optimizer
    adv: Any  # state of the adversarial optimizer
    cache: Tree | None  # the true parameters during a detour


def sam(
    optimizer: GradientTransform,
    adv_optimizer: GradientTransform,
    sync_period: int = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
) -> GradientTransform:
    """Climb for `sync_period - 1` steps, then step down from where the climb began, by the gradient found at its top.

    In transparent mode each call is one step of this cycle, and in between the parameters are those of the climb: validate and save
    when `steps_since_sync` is 0, after every `sync_period` calls. In opaque mode one call makes the whole cycle.

    Args:
        optimizer: For the step down.
        adv_optimizer: For the climb; `chain(normalize(), sgd(rho))` is the paper's.
        sync_period: Calls in a cycle, at least 1; 2 is the paper's, 1 never climbs.
        reset_state: Begin each climb with a fresh adversarial state.
        opaque_mode: Compute the gradients of the climb inside, by the extra argument `grad_fn(params, i) -> gradients`.

    Raises:
        ValueError: If `sync_period` is below 1.

    Reference:
        Foret et al., "Sharpness-aware minimization for efficiently improving generalization", 2021, Algorithm 1. arXiv:2010.01412
    """
    check_whole("sam", at_least(1), sync_period=sync_period)

    def init(params: Tree) -> SamState:
        cache = None if opaque_mode else copy_of(params)
        return SamState(scalar_like(params, 0, torch.int64), optimizer.init(params), adv_optimizer.init(params), cache)

    def climb(updates: Tree, adv: Any, params: Tree, extra: dict[str, Any]) -> tuple[Tree, Any]:
        down, adv = update_inner(adv_optimizer, "sam", updates, adv, params, extra)
        return tree.map(torch.neg, down), adv

    def transparent(updates: Tree, state: SamState, params: Tree = None, **extra: Any) -> tuple[Tree, SamState]:
        p, structure = wide_params(params, "sam"), tree.structure(updates)
        first, last = state.steps_since_sync == 0, state.steps_since_sync == sync_period - 1
        up, adv = climb(updates, state.adv, params, extra)
        cache = tree.unflatten(structure, [torch.where(first, new, old) for new, old in zip(p, tree.leaves(state.cache), strict=True)])
        start = tree.map(lambda c, like: c.to(like.dtype), cache, params)
        down, opt = update_inner(optimizer, "sam", updates, state.opt, start, extra)
        home = leafwise.add(leafwise.sub(tree.leaves(cache), p), tree.leaves(down))
        out = tree.where(last, tree.unflatten(structure, home), tree.map(lambda u, h: u.to(h.dtype), up, tree.unflatten(structure, home)))
        after_climb = adv_optimizer.init(params) if reset_state else state.adv
        new = SamState(
            torch.where(last, torch.zeros_like(state.steps_since_sync), state.steps_since_sync + 1),
            tree.where(last, opt, state.opt),
            tree.where(last, after_climb, adv),
            cache,
        )
        return out, new

    def opaque(
        updates: Tree, state: SamState, params: Tree = None, *, grad_fn: Callable[[Tree, int], Tree], **extra: Any
    ) -> tuple[Tree, SamState]:
        where, adv = params, state.adv
        for i in range(sync_period - 1):
            up, adv = climb(updates, adv, where, extra)
            where = apply_updates(where, up)
            updates = grad_fn(where, i)
        adv = adv_optimizer.init(params) if reset_state else adv
        out, opt = update_inner(optimizer, "sam", updates, state.opt, params, extra)
        return out, SamState(state.steps_since_sync, opt, adv, None)

    needs = optimizer.needs | adv_optimizer.needs
    if opaque_mode:
        return GradientTransform(init, opaque, "sam", needs | {"grad_fn"})
    return GradientTransform(init, transparent, "sam", needs)
