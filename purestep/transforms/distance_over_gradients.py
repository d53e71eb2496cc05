"""Scale updates by the distance gone so far over the gradients seen so far: DoG and DoWG."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .anchor import copy_of
from .moments import widen
from .parameters import wide_params


class DogState(NamedTuple):
    """State of `scale_by_dog`; scalars are 0-d float64."""

    is_init_step: Tensor  # 0-d bool
    init_params: Tree  # where training began
    max_dist: Tensor  # largest distance from there so far
    sum_sq_norm_grads: Tensor
    estim_lr: Tensor  # factor of the latest update

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The factor of the latest update."""
        return {"estim_lr": self.estim_lr}


def scale_by_dog(
    init_step: tuple[Literal["distance", "learning_rate", "heuristic"], float] = ("heuristic", 1e-6), eps: float = 1e-8
) -> GradientTransform:
    """Multiply by the largest distance from the start so far, over the root of the sum of squared norms: `u <- u r / sqrt(G + eps)`.

    Args:
        init_step: How the first step is found: `("distance", r)` gives the first distance, `("heuristic", a)` makes it `a (1 + |p0|)`,
            `("learning_rate", x)` multiplies the first update by `x`. Each number positive.
        eps: Added to the sum of squares. Not negative.

    Raises:
        ValueError: If the kind of first step is unknown.

    Reference:
        Ivgi et al., "DoG is SGD's best friend", 2023, eq. 1 and section 4.1 (heuristic). arXiv:2302.12022
    """
    check_numbers("scale_by_dog", NOT_NEGATIVE, eps=eps)
    kind, first = init_step
    check_numbers("scale_by_dog", POSITIVE, init_step=first)
    if kind not in ("distance", "learning_rate", "heuristic"):
        raise ValueError(f"scale_by_dog: unknown init_step {kind!r} (known: distance, heuristic, learning_rate)")

    def init(params: Tree) -> DogState:
        zero = scalar_like(params, 0.0)
        distance = first * (1 + tree.global_norm(params)).to(zero.device) if kind == "heuristic" else zero + first
        if kind == "learning_rate":
            distance = zero.clone()
        start = copy_of(params)
        return DogState(scalar_like(params, True, torch.bool), start, distance, zero, zero.clone())

    def update(updates: Tree, state: DogState, params: Tree = None, **extra: Any) -> tuple[Tree, DogState]:
        leaves, structure = tree.flatten(updates)
        gone = leafwise.sub(tree.leaves(state.init_params), wide_params(params, "scale_by_dog"))
        distance = torch.maximum(state.max_dist, tree.global_norm(gone).to(state.max_dist.device))
        total = state.sum_sq_norm_grads + tree.global_norm(leaves).to(state.max_dist.device) ** 2
        rate = distance / torch.sqrt(total + eps)
        if kind == "learning_rate":
            rate = torch.where(state.is_init_step, first, rate)
        new = DogState(torch.zeros_like(state.is_init_step), state.init_params, distance, total, rate)
        return tree.unflatten(structure, leafwise.mul(widen(leaves), rate)), new

    return GradientTransform(init, update, "scale_by_dog")


class DowgState(NamedTuple):
    """State of `scale_by_dowg`; scalars are 0-d float64."""

    init_params: Tree  # where training began
    weighted_sq_norm_grads: Tensor
    estim_sq_dist: Tensor  # largest squared distance from there so far
    estim_lr: Tensor  # factor of the latest update

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The factor of the latest update."""
        return {"estim_lr": self.estim_lr}


def scale_by_dowg(init_estim_sq_dist: float | None = None, eps: float = 1e-4) -> GradientTransform:
    """Multiply by the largest squared distance so far, over the root of the sum of squared norms weighed by it.

        r <- max(r, |p - p0|^2);    G <- G + r |u|^2;    u <- u r / (sqrt(G) + eps)

    Args:
        init_estim_sq_dist: Squared distance at the start, in the units of squared parameters. Positive; `eps` by default.
        eps: Added to the root of the sum. Positive.

    Reference:
        Khaled et al., "DoWG unleashed: an efficient universal parameter-free gradient descent method", 2023, Algorithm 1.
        arXiv:2305.16284
    """
    check_numbers("scale_by_dowg", POSITIVE, eps=eps)
    if init_estim_sq_dist is not None:
        check_numbers("scale_by_dowg", POSITIVE, init_estim_sq_dist=init_estim_sq_dist)

    def init(params: Tree) -> DowgState:
        start = copy_of(params)
        first = scalar_like(params, eps if init_estim_sq_dist is None else init_estim_sq_dist)
        return DowgState(start, scalar_like(params, 0.0), first, scalar_like(params, 0.0))

    def update(updates: Tree, state: DowgState, params: Tree = None, **extra: Any) -> tuple[Tree, DowgState]:
        leaves, structure = tree.flatten(updates)
        gone = leafwise.sub(tree.leaves(state.init_params), wide_params(params, "scale_by_dowg"))
        device = state.estim_sq_dist.device
        distance = torch.maximum(state.estim_sq_dist, tree.global_norm(gone).to(device) ** 2)
        total = state.weighted_sq_norm_grads + distance * tree.global_norm(leaves).to(device) ** 2
        rate = distance / (torch.sqrt(total) + eps)
        return tree.unflatten(structure, leafwise.mul(widen(leaves), rate)), DowgState(state.init_params, total, distance, rate)

    return GradientTransform(init, update, "scale_by_dowg")


class ScaleByDistanceOverGradientsState(NamedTuple):
    """State of `scale_by_distance_over_gradients`; for each leaf 0-d float64, but `init_params`."""

    max_dist: Tree  # largest distance from the start so far
    grad_sum_of_squares: Tree
    init_params: Tree  # where training began


def scale_by_distance_over_gradients(reps_rel: float = 1e-6, eps: float = 1e-8, global_scale: float = 1.0) -> GradientTransform:
    """Do as `scale_by_dog` for each leaf by itself: `u <- global_scale u r / sqrt(G + eps)`.

    Args:
        reps_rel: The first distance is `reps_rel (1 + |p0|)`. Positive.
        eps: Added to the sum of squares. Not negative.
        global_scale: Factor on all; finite.

    Reference:
        Ivgi et al., "DoG is SGD's best friend", 2023, section 3.3 (L-DoG). arXiv:2302.12022
    """
    check_numbers("scale_by_distance_over_gradients", POSITIVE, reps_rel=reps_rel)
    check_numbers("scale_by_distance_over_gradients", NOT_NEGATIVE, eps=eps)
    check_numbers("scale_by_distance_over_gradients", FINITE, global_scale=global_scale)

    def init(params: Tree) -> ScaleByDistanceOverGradientsState:
        first = tree.map(lambda p: reps_rel * (1 + _norm(p)), params)
        return ScaleByDistanceOverGradientsState(first, tree.map(torch.zeros_like, first), copy_of(params))

    def update(
        updates: Tree, state: ScaleByDistanceOverGradientsState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, ScaleByDistanceOverGradientsState]:
        leaves, structure = tree.flatten(updates)
        gone = leafwise.sub(wide_params(params, "scale_by_distance_over_gradients"), tree.leaves(state.init_params))
        distances = leafwise.maximum(tree.leaves(state.max_dist), [_norm(x) for x in gone])
        sums = leafwise.add(tree.leaves(state.grad_sum_of_squares), [_norm(u) ** 2 for u in leaves])
        rates = [global_scale * distance / torch.sqrt(total + eps) for distance, total in zip(distances, sums, strict=True)]
        out = [u * rate.to(u.dtype) for u, rate in zip(widen(leaves), rates, strict=True)]
        scalars = (tree.unflatten(structure, distances), tree.unflatten(structure, sums))
        return tree.unflatten(structure, out), ScaleByDistanceOverGradientsState(*scalars, state.init_params)

    return GradientTransform(init, update, "scale_by_distance_over_gradients")


def _norm(leaf: Tensor) -> Tensor:
    return torch.linalg.vector_norm(leaf, dtype=torch.complex128 if leaf.is_complex() else torch.float64)
