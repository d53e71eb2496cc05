"""L-BFGS: an inverse Hessian from the last few changes of parameters and gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .inner_products import dot
from .leafwise import Leaves
from .moments import widen, zeros_of_moments
from .parameters import wide_params


class ScaleByLbfgsState(NamedTuple):
    """State of `scale_by_lbfgs`; memories have a first dimension for time, the latest last."""

    count: Tensor  # 0-d int64, updates so far
    params: Tree  # of last time
    updates: Tree  # of last time
    diff_params_memory: Tree
    diff_updates_memory: Tree
    weights_memory: Tensor  # float64, `1 / <change of updates, change of parameters>`, 0 where there is none


def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransform:
    """Multiply by the L-BFGS estimate of the inverse Hessian.

    With changes `s` of parameters and `y` of updates, from the latest to the first: `a_i = <s_i, q> / <y_i, s_i>; q <- q - a_i y_i`;
    then `q <- c q`; then from the first to the latest `q <- q + (a_i - <y_i, q> / <y_i, s_i>) s_i`.

    Args:
        memory_size: Number of changes that are kept; at least 1. The state holds two copies of the parameters for each.
        scale_init_precond: `c = <y, s> / |y|^2` of the latest change, and `min(1, 1 / |u|)` at the first update; else 1.

    Raises:
        ValueError: If `memory_size` is below 1.

    Reference:
        Nocedal and Wright, "Numerical optimization", 2nd edition, 2006, Algorithm 7.4 (with eq. 7.20). Updates are gradients, of one batch
        or of all data; changes across batches are noise.
    """
    check_whole("scale_by_lbfgs", at_least(1), memory_size=memory_size)

    def init(params: Tree) -> ScaleByLbfgsState:
        memory = [tree.map(lambda z: z.new_zeros((memory_size, *z.shape)), zeros_of_moments(params)) for _ in range(2)]
        weights = scalar_like(params, 0.0).expand(memory_size).clone()
        return ScaleByLbfgsState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), zeros_of_moments(params), *memory, weights)

    def update(updates: Tree, state: ScaleByLbfgsState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByLbfgsState]:
        leaves, structure = tree.flatten(updates)
        u, p = widen(leaves), wide_params(params, "scale_by_lbfgs")
        started = state.count > 0
        ds = [torch.where(started, x, 0.0) for x in leafwise.sub(p, tree.leaves(state.params))]
        dy = [torch.where(started, x, 0.0) for x in leafwise.sub(u, tree.leaves(state.updates))]
        product = dot(dy, ds).to(state.weights_memory.device)
        weight = torch.where(product == 0, 0.0, 1 / torch.where(product == 0, 1.0, product))
        s, y = _pushed(tree.leaves(state.diff_params_memory), ds), _pushed(tree.leaves(state.diff_updates_memory), dy)
        weights = torch.cat([state.weights_memory[1:], weight[None]])
        scale = _initial_scale(started, product, dy, u) if scale_init_precond else torch.ones_like(product)
        out = _two_loops(u, s, y, weights, scale)
        trees = [tree.unflatten(structure, x) for x in (leafwise.add(p, 0.0), leafwise.add(u, 0.0), s, y)]
        return tree.unflatten(structure, out), ScaleByLbfgsState(state.count + 1, *trees, weights)

    return GradientTransform(init, update, "scale_by_lbfgs")


def _pushed(memory: Leaves, new: Leaves) -> Leaves:
    return [torch.cat([old[1:], x[None]]) for old, x in zip(memory, new, strict=True)]


def _initial_scale(started: Tensor, product: Tensor, dy: Leaves, updates: Leaves) -> Tensor:
    square = dot(dy, dy).to(product.device)
    later = torch.where(square > 0, product / torch.where(square > 0, square, 1.0), 1.0)
    return torch.where(started, later, (1 / tree.global_norm(updates).to(product.device)).clamp(max=1.0))


def _two_loops(updates: Leaves, s: Leaves, y: Leaves, weights: Tensor, scale: Tensor) -> Leaves:
    q, factors = updates, []
    for i in reversed(range(weights.shape[0])):
        factors.append(weights[i] * dot([x[i] for x in s], q).to(weights.device))
        q = leafwise.sub(q, leafwise.mul([x[i] for x in y], factors[-1]))
    q = leafwise.mul(q, scale)
    for i, factor in enumerate(reversed(factors)):
        back = weights[i] * dot([x[i] for x in y], q).to(weights.device)
        q = leafwise.add(q, leafwise.mul([x[i] for x in s], factor - back))
    return q
