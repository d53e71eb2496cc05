"""Small updates to parameters in bfloat16 or float16, that plain rounding would lose.

`master_weights` keeps wide copies, `kahan_summation` keeps what rounding took away, `stochastic_rounding` keeps nothing and is right
on average. Leaves of float32 and wider pass through all three untouched and cost nothing. Each emits the difference to the rounded
parameter that it wants, so that `apply_updates` arrives exactly there.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.transform import EmptyState, GradientTransform
from ..core.tree import Tree
from ..errors import TransformError
from .leafwise import Leaves
from .wrapping import close_gate, open_gate

_PRECISION = {torch.bfloat16: (8, -125), torch.float16: (11, -13)}
"""Significant bits, and exponent of the smallest normal number as `frexp` counts it."""


def _is_narrow(leaf: Tensor) -> bool:
    return leaf.dtype in _PRECISION


def _for_narrow(params: Tree, make: Any) -> Tree:
    """A tree like the parameters with `make(leaf)` for narrow leaves, and nothing for the others."""
    return tree.map(lambda p: make(p) if _is_narrow(p) else (), params)


def _leaves_of(params: Tree, name: str) -> Leaves:
    if params is None:
        raise TransformError(f"{name} looks at the parameters: call update(updates, state, params)")
    return tree.leaves(params)


def _difference(target: Tensor, param: Tensor) -> Tensor:
    return target.to(torch.float32) - param.to(torch.float32)


class MasterWeightsState(NamedTuple):
    """State of `master_weights`."""

    master: Tree  # wide copies of the narrow leaves; nothing in place of the others
    inner: Any


def master_weights(inner: GradientTransform, dtype: torch.dtype = torch.float32) -> GradientTransform:
    """Let an optimizer work on wide copies of bfloat16 and float16 parameters, which become the copies, rounded.

    Args:
        inner: Sees the copies as parameters, in `init` and in `update`. It may hold gates.
        dtype: Of the copies.

    Reference:
        Micikevicius et al., "Mixed precision training", 2018, section 3.1. arXiv:1710.03740
    """

    def init(params: Tree) -> MasterWeightsState:
        master = _for_narrow(params, lambda p: p.to(dtype))
        return MasterWeightsState(master, inner.init(_widened(params, tree.leaves(master))))

    def update(updates: Tree, state: MasterWeightsState, params: Tree = None, **extra: Any) -> tuple[Any, MasterWeightsState]:
        narrow, masters = _leaves_of(params, "master_weights"), tree.leaves(state.master)
        returned, new_inner = inner.update(updates, state.inner, _widened(params, masters), **extra)
        plain, apply, reject = open_gate(returned)
        leaves, structure = tree.flatten(plain)
        remaining, new_masters, out = iter(masters), [], []
        for u, p in zip(leaves, narrow, strict=True):
            if not _is_narrow(p):
                out.append(u)
                continue
            old = next(remaining)
            new = old + u.to(dtype)
            out.append(_difference(new.to(p.dtype), p))
            new_masters.append(new if apply is None else torch.where(apply, new, old))
        master = tree.unflatten(tree.structure(state.master), new_masters)
        return close_gate(tree.unflatten(structure, out), apply, reject), MasterWeightsState(master, new_inner)

    return GradientTransform(init, update, "master_weights", inner.needs, inner.scale_loss and _inner_scale(inner))


def _inner_scale(inner: GradientTransform) -> Any:
    return lambda loss, state: inner.scale_loss(loss, state.inner)  # type: ignore[misc]


def _widened(params: Tree, masters: Leaves) -> Tree:
    leaves, structure = tree.flatten(params)
    remaining = iter(masters)
    return tree.unflatten(structure, [next(remaining) if _is_narrow(p) else p for p in leaves])


class KahanSummationState(NamedTuple):
    """State of `kahan_summation`."""

    compensation: Tree  # what rounding has taken from narrow leaves so far; nothing in place of the others


def kahan_summation(compensation_dtype: torch.dtype | None = None) -> GradientTransform:
    """Remember what rounding takes away from bfloat16 and float16 parameters, and add it to the next update.

        y = u + c;   p_new = round(p + y);   c <- y - (p_new - p)

    Stands last in a chain. The parameter is worth `p + c`.

    Args:
        compensation_dtype: Of `c`; the parameter's own by default, which doubles its precision at half the memory of a float32 copy.

    Reference:
        Kahan, "Further remarks on reducing truncation errors", 1965. Zamirai et al., "Revisiting bfloat16 training", 2020, Algorithm 3.
        arXiv:2010.06192
    """

    def init(params: Tree) -> KahanSummationState:
        return KahanSummationState(_for_narrow(params, lambda p: torch.zeros_like(p, dtype=compensation_dtype or p.dtype)))

    def update(updates: Tree, state: KahanSummationState, params: Tree = None, **extra: Any) -> tuple[Tree, KahanSummationState]:
        leaves, structure = tree.flatten(updates)
        remaining, kept, out = iter(tree.leaves(state.compensation)), [], []
        for u, p in zip(leaves, _leaves_of(params, "kahan_summation"), strict=True):
            if not _is_narrow(p):
                out.append(u)
                continue
            old = next(remaining)
            wanted = u.to(torch.float32) + old.to(torch.float32)
            moved = _difference((p.to(torch.float32) + wanted).to(p.dtype), p)
            out.append(moved)
            kept.append((wanted - moved).to(old.dtype))
        return tree.unflatten(structure, out), KahanSummationState(tree.unflatten(tree.structure(state.compensation), kept))

    return GradientTransform(init, update, "kahan_summation")


def stochastic_rounding() -> GradientTransform:
    """Round bfloat16 and float16 parameters up or down by chance, so that they are right on average.

    A sum between two neighbours `a < x < b` becomes `b` with probability `(x - a) / (b - a)`. Stands last in a chain. Needs `key`,
    which the step passes: a 0-d int64, new for every batch.

    Reference:
        Gupta et al., "Deep learning with limited numerical precision", 2015, section 3.1. arXiv:1502.02551
    """

    def init(params: Tree) -> EmptyState:
        return EmptyState()

    def update(updates: Tree, state: EmptyState, params: Tree = None, *, key: Tensor, **extra: Any) -> tuple[Tree, EmptyState]:
        leaves, structure = tree.flatten(updates)
        out = []
        for draw, (u, p) in enumerate(zip(leaves, _leaves_of(params, "stochastic_rounding"), strict=True)):
            if _is_narrow(p):
                chance = rng.uniform(key, draw, p.shape).to(p.device)
                u = _difference(round_stochastically(p.to(torch.float32) + u.to(torch.float32), chance, p.dtype), p)
            out.append(u)
        return tree.unflatten(structure, out), state

    return GradientTransform(init, update, "stochastic_rounding", frozenset({"key"}))


def round_stochastically(x: Tensor, chance: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float32 to bfloat16 or float16, up where `chance` is at least one minus the fraction lost by rounding down.

    Args:
        x: float32.
        chance: Uniform in [0, 1), shape of `x`.
        dtype: bfloat16 or float16.
    """
    bits, smallest = _PRECISION[dtype]
    exponent = torch.frexp(x).exponent.clamp(min=smallest) - bits
    steps = torch.floor(torch.ldexp(x, -exponent) + chance)  # exact but for the sum: multiples of the spacing at x
    return torch.ldexp(steps, exponent).to(dtype)
