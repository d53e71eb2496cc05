"""Precondition a matrix from both sides: Shampoo's inverse roots, and Adam in the basis of their eigenvectors (SOAP).

Both keep, for a matrix update G, running sums of G G^T and of G^T G. Which leaves are matrices is said in `dimensions.py`; other
leaves belong to another transform, see `optimizers/matrix_methods.py`. There is no interval between refreshes of roots or basis: in
one captured graph both branches would be computed anyway.
"""

from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .adam_moments import adam_denominator
from .dimensions import Layout, MuonDimensionNumbers, WeightDimensions, as_matrices, dimensions_of, finite_or_zero, from_matrices
from .moments import bias_correction, decay_mean, widen, zeros_of_moments

Sides = dict[str, Tensor]
"""`{"left": (..., out, out), "right": (..., in, in)}`; a side that is too large to precondition has no entry."""


def _identities(matrices: Tensor, max_precond_dim: int, scale: float) -> Sides:
    """A multiple of the identity for each side that is not too large."""
    sizes = {"left": matrices.shape[-2], "right": matrices.shape[-1]}

    def identity(size: int) -> Tensor:
        eye = torch.eye(size, dtype=matrices.dtype, device=matrices.device) * scale
        return eye.expand(*matrices.shape[:-2], size, size).clone()

    return {side: identity(size) for side, size in sizes.items() if size <= max_precond_dim}


def _gram(matrices: Tensor, side: str) -> Tensor:
    return matrices @ matrices.mT if side == "left" else matrices.mT @ matrices


def _multiplied(matrices: Tensor, factors: Sides) -> Tensor:
    """`left @ matrices @ right`."""
    for side, factor in factors.items():
        matrices = factor @ matrices if side == "left" else matrices @ factor
    return matrices


def _checked_sides(name: str, params: Tree, dimensions: tuple[MuonDimensionNumbers, ...]) -> list[Tensor]:
    leaves = widen(tree.leaves(params))
    if any(leaf.is_complex() for leaf in leaves):
        raise ValueError(f"{name}: complex leaves have no preconditioner here; wrap it in split_real_and_imaginary")
    return [as_matrices(leaf, dims) for leaf, dims in zip(leaves, dimensions, strict=True)]


# --- Shampoo ------------------------------------------------------------------------------------------------------


@tree.node(static=("dimensions",))
class ScaleByShampooState:
    """State of `scale_by_shampoo`."""

    count: Tensor  # 0-d int64, updates so far
    grams: list[Sides]  # of each leaf; sums, or means with `b2`
    dimensions: tuple[MuonDimensionNumbers, ...]  # of each leaf


def scale_by_shampoo(
    b2: float | None = None,
    eps: float = 1e-6,
    max_precond_dim: int = 8192,
    *,
    graft: bool = False,
    weight_dimension_numbers: WeightDimensions = None,
    layout: Layout = "out_in",
) -> GradientTransform:
    """Multiply a matrix update from both sides by inverse fourth roots of its summed squares.

        L <- L + G G^T;    R <- R + G^T G;    u <- (L + eps)^(-1/4) G (R + eps)^(-1/4)

    Args:
        b2: None sums, as in the paper; a number in [0, 1) takes running means, corrected for their start.
        eps: Added to the eigenvalues, times the identity. Not negative.
        max_precond_dim: A side that is longer has no preconditioner; the other one then has the power -1/2.
        graft: Give each leaf's result the norm of its update before.
        weight_dimension_numbers: Which dimensions form the matrix, see `dimensions_by_path`; every leaf needs some.
        layout: Of two-dimensional leaves that this does not speak of.

    Reference:
        Gupta et al., "Shampoo: preconditioned stochastic tensor optimization", 2018, Algorithm 1. arXiv:1802.09568
    """
    check_numbers("scale_by_shampoo", NOT_NEGATIVE, eps=eps)
    check_whole("scale_by_shampoo", at_least(0), max_precond_dim=max_precond_dim)
    if b2 is not None:
        check_numbers("scale_by_shampoo", DECAY, b2=b2)

    def init(params: Tree) -> ScaleByShampooState:
        dimensions = dimensions_of(weight_dimension_numbers, params, layout, "scale_by_shampoo")
        grams = [_identities(m, max_precond_dim, 0.0) for m in _checked_sides("scale_by_shampoo", params, dimensions)]
        return ScaleByShampooState(scalar_like(params, 0, torch.int64), grams, dimensions)

    def update(updates: Tree, state: ScaleByShampooState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByShampooState]:
        leaves, structure = tree.flatten(updates)
        count = state.count + 1
        correction = None if b2 is None else bias_correction(b2, count)
        out, grams = [], []
        for leaf, old, dims in zip(widen(leaves), state.grams, state.dimensions, strict=True):
            matrices = as_matrices(leaf, dims)
            new = {side: _accumulated(sums, _gram(matrices, side), b2) for side, sums in old.items()}
            roots = {side: _inverse_root(sums, correction, 2 * len(new), eps) for side, sums in new.items()}
            result = from_matrices(_multiplied(matrices, roots), leaf, dims)
            out.append(_with_norm_of(result, leaf) if graft else result)
            grams.append(new)
        return tree.unflatten(structure, out), ScaleByShampooState(count, grams, state.dimensions)

    return GradientTransform(init, update, "scale_by_shampoo")


def _accumulated(old: Tensor, new: Tensor, decay: float | None) -> Tensor:
    return old + new if decay is None else decay * old + (1 - decay) * new


def _inverse_root(matrix: Tensor, correction: Tensor | None, root: int, eps: float) -> Tensor:
    """`(matrix / correction + eps)^(-1/root)` of symmetric matrices that have no negative eigenvalue but by rounding."""
    values, vectors = torch.linalg.eigh(finite_or_zero(matrix))
    if correction is not None:
        values = values / correction.to(values.dtype)
    powers = (values.clamp(min=0.0) + eps) ** (-1 / root)
    return (vectors * powers.unsqueeze(-2)) @ vectors.mT


def _with_norm_of(x: Tensor, like: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x)
    return x * (torch.linalg.vector_norm(like) / torch.where(norm > 0, norm, torch.ones_like(norm)))


# --- SOAP ---------------------------------------------------------------------------------------------------------


@tree.node(static=("dimensions",))
class ScaleBySoapState:
    """State of `scale_by_soap`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: list[Tensor]  # running mean of squares in the basis, of each leaf as matrices
    grams: list[Sides]  # running means of G G^T and G^T G
    basis: list[Sides]  # their eigenvectors, nearly
    dimensions: tuple[MuonDimensionNumbers, ...]  # of each leaf


def scale_by_soap(
    b1: float = 0.95,
    b2: float = 0.95,
    shampoo_beta: float | None = None,
    eps: float = 1e-8,
    max_precond_dim: int = 10000,
    *,
    weight_dimension_numbers: WeightDimensions = None,
    layout: Layout = "out_in",
) -> GradientTransform:
    """Run Adam in the eigenbasis of Shampoo's preconditioners.

        m <- b1 m + (1 - b1) G;    G' = Q_L^T G Q_R;    v <- b2 v + (1 - b2) G'^2
        u <- Q_L ((Q_L^T m^ Q_R) / (sqrt(v^) + eps)) Q_R^T
        L <- b L + (1 - b) G G^T;  Q_L <- the orthogonal factor of L Q_L;  R and Q_R alike

    `m^`, `v^` are corrected for their start, as Adam's. The basis begins as the identity, so that the first update is Adam's.

    Args:
        b1: Decay of the mean, in [0, 1).
        b2: Decay of the squares in the basis, in [0, 1).
        shampoo_beta: Decay `b` of the preconditioners, in [0, 1); `b2` by default.
        eps: Added outside the root, in the units of the updates. Not negative.
        max_precond_dim: A side that is longer is not rotated.
        weight_dimension_numbers: Which dimensions form the matrix, see `dimensions_by_path`; every leaf needs some.
        layout: Of two-dimensional leaves that this does not speak of.

    Reference:
        Vyas et al., "SOAP: improving and stabilizing Shampoo using Adam", 2024, Algorithm 3 with a refresh at every update (Algorithm 4
        is the refresh). arXiv:2409.11321. The authors' code spends the first update on an eigendecomposition and moves nothing.
    """
    check_numbers("scale_by_soap", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_soap", NOT_NEGATIVE, eps=eps)
    check_whole("scale_by_soap", at_least(0), max_precond_dim=max_precond_dim)
    if shampoo_beta is not None:
        check_numbers("scale_by_soap", DECAY, shampoo_beta=shampoo_beta)
    gram_decay = b2 if shampoo_beta is None else shampoo_beta

    def init(params: Tree) -> ScaleBySoapState:
        dimensions = dimensions_of(weight_dimension_numbers, params, layout, "scale_by_soap")
        matrices = _checked_sides("scale_by_soap", params, dimensions)
        grams, basis = ([_identities(m, max_precond_dim, scale) for m in matrices] for scale in (0.0, 1.0))
        nu = [torch.zeros_like(m) for m in matrices]
        return ScaleBySoapState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), nu, grams, basis, dimensions)

    def update(updates: Tree, state: ScaleBySoapState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleBySoapState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        mu = decay_mean(tree.leaves(state.mu), wide, b1)
        matrices = [as_matrices(leaf, dims) for leaf, dims in zip(wide, state.dimensions, strict=True)]
        there = [{side: q.mT if side == "left" else q for side, q in basis.items()} for basis in state.basis]
        back = [{side: q if side == "left" else q.mT for side, q in basis.items()} for basis in state.basis]
        rotated = [_multiplied(m, q) for m, q in zip(matrices, there, strict=True)]
        nu = [b2 * v + (1 - b2) * g * g for v, g in zip(state.nu, rotated, strict=True)]
        means = [_multiplied(as_matrices(m, dims), q) for m, dims, q in zip(mu, state.dimensions, there, strict=True)]
        means = leafwise.div(means, bias_correction(b1, count))
        scaled = leafwise.div(means, adam_denominator(nu, bias_correction(b2, count), 1.0, eps, 0.0))
        out = [from_matrices(_multiplied(s, q), leaf, d) for s, q, leaf, d in zip(scaled, back, wide, state.dimensions, strict=True)]
        grams = [
            {side: _accumulated(sums, _gram(m, side), gram_decay) for side, sums in old.items()}
            for m, old in zip(matrices, state.grams, strict=True)
        ]
        basis = [_refreshed(sums, old) for sums, old in zip(grams, state.basis, strict=True)]
        new = ScaleBySoapState(count, tree.unflatten(structure, mu), nu, grams, basis, state.dimensions)
        return tree.unflatten(structure, out), new

    return GradientTransform(init, update, "scale_by_soap")


def _refreshed(grams: Sides, basis: Sides) -> Sides:
    """One step of orthogonal iteration towards the eigenvectors."""
    return {side: torch.linalg.qr(finite_or_zero(_damped(grams[side]) @ q)).Q.contiguous() for side, q in basis.items()}


def _damped(gram: Tensor) -> Tensor:
    """Lift eigenvalues that are only rounding errors, whose vectors would be as arbitrary; those of old directions then stay."""
    size = gram.shape[-1]
    mean = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] / max(size, 1)
    return gram + torch.finfo(gram.dtype).eps ** (1 / 3) * mean * torch.eye(size, dtype=gram.dtype, device=gram.device)
