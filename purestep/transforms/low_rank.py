"""GaLore: run an optimizer on projections of matrix updates to a few directions."""

from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .adam_moments import scale_by_adam
from .dimensions import (
    Layout,
    MuonDimensionNumbers,
    WeightDimensions,
    as_matrices,
    axes,
    dimensions_by_path,
    fans,
    finite_or_zero,
    from_matrices,
)
from .inner_transform import update_inner
from .moments import wide_dtype, widen

Dimensions = tuple[MuonDimensionNumbers | None, ...]


@tree.node(static=("dimensions",))
class ScaleByGaloreState:
    """State of `scale_by_galore`."""

    count: Tensor  # 0-d int64, updates so far
    projectors: list[Tensor]  # orthonormal columns; of those leaves that are projected
    base: Any  # state of the base optimizer, on the projections
    dimensions: Dimensions  # of each leaf; None: not projected


def scale_by_galore(
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransform | None = None,
    weight_dimension_numbers: WeightDimensions = None,
    *,
    layout: Layout = "out_in",
) -> GradientTransform:
    """Run a transform on `P^T G`, with `P` the first singular vectors of the update, and take its result back: `u <- scale P base(P^T G)`.

    The longer side of a matrix is projected, so that moments have `rank * shorter side` elements. Other leaves go to the transform
    as they are.

    Args:
        rank: Number of directions; at least 1.
        update_proj_gap: Updates between two choices of `P`; at least 1. In one captured graph the decomposition is computed at every update
            and used at these, so a gap keeps the moments' basis fixed and does not save time.
        scale: The paper's alpha; finite.
        base_optimizer: `scale_by_adam()` by default. It does not see the parameters.
        weight_dimension_numbers: Which leaves are projected, and how they form a matrix, see `dimensions_by_path`.
        layout: Of two-dimensional leaves that this does not speak of. It decides which side of a square matrix is projected.

    Reference:
        Zhao et al., "GaLore: memory-efficient LLM training by gradient low-rank projection", 2024, Algorithm 2. arXiv:2403.03507.
        The longer side is projected, as in optax; the paper projects the shorter.
    """
    check_whole("scale_by_galore", at_least(1), rank=rank, update_proj_gap=update_proj_gap)
    check_numbers("scale_by_galore", FINITE, scale=scale)
    base = base_optimizer or scale_by_adam()

    def init(params: Tree) -> ScaleByGaloreState:
        dimensions = tuple(dimensions_by_path(weight_dimension_numbers, params, layout).values())
        leaves, structure = tree.flatten(params)
        projectors, proxies = [], []
        for leaf, dims in zip(leaves, dimensions, strict=True):
            if dims is None:
                proxies.append(leaf)
                continue
            tall, short = _sides(leaf, dims)
            size = min(rank, short)
            projectors.append(torch.zeros(tall, size, dtype=wide_dtype(leaf.dtype), device=leaf.device))
            proxies.append(torch.zeros(size, short, dtype=wide_dtype(leaf.dtype), device=leaf.device))
        return ScaleByGaloreState(
            scalar_like(params, 0, torch.int64), projectors, base.init(tree.unflatten(structure, proxies)), dimensions
        )

    def update(updates: Tree, state: ScaleByGaloreState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByGaloreState]:
        leaves, structure = tree.flatten(updates)
        renew = state.count % update_proj_gap == 0
        remaining, projectors, projected = iter(state.projectors), [], []
        for leaf, dims in zip(widen(leaves), state.dimensions, strict=True):
            if dims is None:
                projected.append(leaf)
                continue
            matrix, old = _tall(leaf, dims), next(remaining)
            vectors = torch.linalg.svd(finite_or_zero(matrix), full_matrices=False).U[:, : old.shape[1]].contiguous()
            projectors.append(torch.where(renew, vectors.reshape(-1).view(vectors.shape), old))
            projected.append(projectors[-1].mH @ matrix)
        low, base_state = update_inner(base, "scale_by_galore", tree.unflatten(structure, projected), state.base, None, extra)
        new, out = iter(projectors), []
        for u, leaf, dims in zip(tree.leaves(low), leaves, state.dimensions, strict=True):
            out.append(u if dims is None else _from_tall(next(new) @ u * scale, leaf, dims))
        return tree.unflatten(structure, out), ScaleByGaloreState(state.count + 1, projectors, base_state, state.dimensions)

    return GradientTransform(init, update, "scale_by_galore", base.needs)


def _is_flat(leaf: Tensor, dims: MuonDimensionNumbers) -> bool:
    """Whether the sum over inputs is the longer side; also where the sides are equal."""
    fan_in, fan_out = fans(leaf, dims)
    return fan_in >= fan_out


def _sides(leaf: Tensor, dims: MuonDimensionNumbers) -> tuple[int, int]:
    if axes(leaf, dims).batch:
        raise ValueError(f"scale_by_galore: {dims} must name all dimensions of shape {tuple(leaf.shape)}")
    fan_in, fan_out = fans(leaf, dims)
    return max(fan_in, fan_out), min(fan_in, fan_out)


def _tall(leaf: Tensor, dims: MuonDimensionNumbers) -> Tensor:
    """The leaf as a matrix whose rows are its longer side."""
    matrix = as_matrices(leaf, dims)
    return matrix.mT if _is_flat(leaf, dims) else matrix


def _from_tall(matrix: Tensor, leaf: Tensor, dims: MuonDimensionNumbers) -> Tensor:
    return from_matrices(matrix.mT if _is_flat(leaf, dims) else matrix, leaf, dims)
