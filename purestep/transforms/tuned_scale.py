"""Mechanic: learn the overall scale of another optimizer's steps."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import NOT_NEGATIVE, POSITIVE, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .inner_products import dot
from .inner_transform import update_inner
from .moments import widen
from .parameters import wide_params


class MechanicState(NamedTuple):
    """State of `mechanize`; `r`, `m`, `v`, `s` are float64 vectors, one element for each decay."""

    r: Tensor  # reward
    m: Tensor  # largest product so far
    v: Tensor  # sum of squared products
    s: Tensor  # scales; their sum multiplies the base optimizer's steps
    x0: Tree  # where training began
    base: Any  # state of the base optimizer

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The scale that was found."""
        return {"mechanic/scale": self.s.sum()}


def mechanize(
    base_optimizer: GradientTransform, weight_decay: float = 0.01, eps: float = 1e-8, s_init: float = 1e-6, num_betas: int = 6
) -> GradientTransform:
    """Multiply the sum of an optimizer's steps by a scale that is found on the way.

    With `D = (p0 - p) / s` the base optimizer's way so far and `h = <u + weight_decay s (|u| / |p|) p, D>`, for each decay `b`:

        m <- max(b m, |h|);   v <- b^2 v + h^2;   r <- b r + s_b clip(h, -m_old, m_old)
        s_b <- (s_init m / num_betas + max(r, 0)) / sqrt(v)

    and `p <- p0 - (sum of s_b) (D - base step)`.

    Args:
        base_optimizer: With a learning rate of 1, or a schedule that begins at 1.
        weight_decay: Of the tuner's own regularization. Not negative.
        eps: Added to denominators and to products. Not negative.
        s_init: First scale. Positive.
        num_betas: Number of decays, at least 1: 0.9, 0.99, 0.999, ...

    Reference:
        Cutkosky et al., "Mechanic: a learning rate tuner", 2023, Algorithm 1. arXiv:2306.00144
    """
    check_numbers("mechanize", NOT_NEGATIVE, weight_decay=weight_decay, eps=eps)
    check_numbers("mechanize", POSITIVE, s_init=s_init)
    check_whole("mechanize", at_least(1), num_betas=num_betas)

    def init(params: Tree) -> MechanicState:
        zeros = [scalar_like(params, 0.0).expand(num_betas).clone() for _ in range(3)]
        return MechanicState(*zeros, torch.full_like(zeros[0], s_init), copy_of(params), base_optimizer.init(params))

    def update(updates: Tree, state: MechanicState, params: Tree = None, **extra: Any) -> tuple[Tree, MechanicState]:
        leaves, structure = tree.flatten(updates)
        u, p, x0 = widen(leaves), wide_params(params, "mechanize"), tree.leaves(state.x0)
        steps, base = update_inner(base_optimizer, "mechanize", updates, state.base, params, extra)
        scale = state.s.sum()
        way = leafwise.div(leafwise.sub(x0, p), scale + eps)
        pull = weight_decay * scale * tree.global_norm(u).to(scale.device) / (tree.global_norm(p).to(scale.device) + eps)
        h = dot(leafwise.add(u, leafwise.mul(p, pull)), way)
        # 0.9, 0.99, ...: made from a vector that is on the device already
        betas = -torch.expm1(-math.log(10.0) * torch.cumsum(torch.ones_like(state.s), 0))
        m = torch.maximum(betas * state.m, h.abs() + eps)
        v = betas**2 * state.v + h**2
        r = betas * state.r + torch.minimum(torch.maximum(h, -state.m), state.m) * state.s
        s = (s_init / num_betas * m + r.clamp(min=0.0)) / (torch.sqrt(v) + eps)
        new_way = leafwise.sub(way, tree.leaves(steps))
        out = leafwise.sub(leafwise.sub(x0, leafwise.mul(new_way, s.sum())), p)
        return tree.unflatten(structure, out), MechanicState(r, m, v, s, state.x0, base)

    return GradientTransform(init, update, "mechanize", base_optimizer.needs)
