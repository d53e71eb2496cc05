"""Which dimensions of a weight a matrix method reads as rows and columns, and which leaves it takes at all.

Chosen by layout, pattern, tree or function, and found by the paths of the leaves, so that a transform that sees only its own leaves
in a flat dict `{path: leaf}` finds the same answer as one that sees the whole tree.
"""

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree

Layout = Literal["out_in", "in_out"]


class MuonDimensionNumbers(NamedTuple):
    """Dimensions of a weight that are summed over, and those of its output; any others are a batch of matrices.

    torch's linear weight `(out, in)` has `reduction_axis=1, output_axis=0`, its convolution `(out, in, *kernel)` has
    `reduction_axis=(1, 2, 3), output_axis=0`. The defaults are optax's, for weights `(in, out)`.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1


WeightDimensions = MuonDimensionNumbers | Mapping[str, Any] | Callable[[Tree], Tree] | Tree | None
ByPath = dict[str, MuonDimensionNumbers | None]


def default_dimensions(layout: Layout) -> MuonDimensionNumbers:
    """The dimensions of a matrix in a layout.

    Raises:
        ValueError: If the layout is unknown.
    """
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"unknown layout {layout!r}: 'out_in' is torch's (out, in), 'in_out' is optax's (in, out)")
    return MuonDimensionNumbers(1, 0) if layout == "out_in" else MuonDimensionNumbers(0, 1)


def dimensions_by_path(choice: WeightDimensions, params: Tree, layout: Layout) -> ByPath:
    """Dimension numbers of each leaf by its path; None: not a leaf for a matrix method.

    Args:
        choice: None: every leaf with two dimensions, read by `layout`, and no other. One `MuonDimensionNumbers`: every leaf. A
            mapping of path patterns, or a tree, with None where a leaf is left out: a leaf takes the first entry whose pattern or
            path fits it or a branch that it is on, and is decided as under None if no entry fits. A function of the parameters
            that returns one of these.
    """
    if callable(choice):
        choice = choice(params)
    own = default_dimensions(layout)
    entries = [] if choice is None else list(_entries(choice, ""))
    found: ByPath = {}
    for path, leaf in tree.items(params):
        fitting = [dims for pattern, dims in entries if fits(path, pattern)]
        found[path] = fitting[0] if fitting else (own if leaf.ndim == 2 else None)
    return found


def dimensions_of(choice: WeightDimensions, params: Tree, layout: Layout, name: str) -> tuple[MuonDimensionNumbers, ...]:
    """Dimension numbers of every leaf, in the order of `tree.leaves`; each must have some, and fit them.

    Raises:
        ValueError: Naming the first leaf that has none, or that they do not fit.
    """
    found = dimensions_by_path(choice, params, layout)
    chosen = []
    for (path, dims), leaf in zip(found.items(), tree.leaves(params), strict=True):
        if dims is None:
            raise ValueError(f"{name}: leaf {path!r} has no dimension numbers; mask it, or name its dimensions by MuonDimensionNumbers")
        axes(leaf, dims, path)
        chosen.append(dims)
    return tuple(chosen)


def check_patterns(choice: WeightDimensions, params: Tree) -> None:
    """Check that every entry of a choice fits some leaf.

    Raises:
        PatternError: Naming the first entry that fits none, and near misses.
    """
    paths = tree.paths(params)
    if choice is not None and not callable(choice):
        unfit = [pattern for pattern, _ in _entries(choice, "") if not any(fits(path, pattern) for path in paths)]
        tree.first_matches(unfit, paths, "dimension numbers for")


def fits(path: str, pattern: str) -> bool:
    """Whether a pattern is that of a leaf, or of a branch that it is on; the empty pattern is the root."""
    literal = pattern.replace("[", "[[]")
    return not pattern or fnmatch.fnmatchcase(path, literal) or fnmatch.fnmatchcase(path, f"{literal}.*")


def _entries(choice: Any, path: str) -> Iterator[tuple[str, MuonDimensionNumbers | None]]:
    if choice is None or isinstance(choice, MuonDimensionNumbers):
        yield path, choice
        return
    children = choice.items() if isinstance(choice, Mapping) else enumerate(choice)
    if hasattr(choice, "_fields"):
        children = zip(choice._fields, choice, strict=True)
    for key, child in children:
        yield from _entries(child, f"{path}.{key}" if path else str(key))


class Axes(NamedTuple):
    """The dimensions of one leaf, counted from the front."""

    batch: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]


def axes(leaf: Tensor, dims: MuonDimensionNumbers, path: str = "a leaf") -> Axes:
    """Sort the dimensions of a leaf.

    Raises:
        ValueError: If the leaf has fewer than two dimensions, or one of them is named twice.
    """
    if leaf.ndim < 2:
        raise ValueError(f"{path}: a matrix method needs at least two dimensions, got shape {tuple(leaf.shape)}; give it None instead")
    named = [(axis,) if isinstance(axis, int) else tuple(axis) for axis in dims]
    if wrong := [axis for group in named for axis in group if not -leaf.ndim <= axis < leaf.ndim]:
        raise ValueError(f"{path}: {dims} names dimension {wrong[0]}, but the shape is {tuple(leaf.shape)}")
    reduction, output = ([axis % leaf.ndim for axis in group] for group in named)
    if len({*reduction, *output}) < len(reduction) + len(output):
        raise ValueError(f"{path}: {dims} names a dimension of shape {tuple(leaf.shape)} twice")
    batch = [axis for axis in range(leaf.ndim) if axis not in (*reduction, *output)]
    return Axes(tuple(batch), tuple(reduction), tuple(output))


def fans(leaf: Tensor, dims: MuonDimensionNumbers) -> tuple[int, int]:
    """How many inputs an output of the weight sums over, and how many outputs it has."""
    _, reduction, output = axes(leaf, dims)
    return math.prod([leaf.shape[axis] for axis in reduction]), math.prod([leaf.shape[axis] for axis in output])


def as_matrices(leaf: Tensor, dims: MuonDimensionNumbers) -> Tensor:
    """The leaf as a batch of matrices `(batch, output, reduction)`, or one matrix if it has no batch dimensions."""
    batch, reduction, output = axes(leaf, dims)
    fan_in, fan_out = fans(leaf, dims)
    size = math.prod([leaf.shape[axis] for axis in batch])
    matrices = leaf.permute(*batch, *output, *reduction)
    return matrices.reshape(size, fan_out, fan_in) if batch else matrices.reshape(fan_out, fan_in)


def from_matrices(matrices: Tensor, leaf: Tensor, dims: MuonDimensionNumbers) -> Tensor:
    """Undo `as_matrices` for a leaf of the shape of `leaf`."""
    batch, reduction, output = axes(leaf, dims)
    order = (*batch, *output, *reduction)
    return matrices.reshape([leaf.shape[axis] for axis in order]).permute([order.index(axis) for axis in range(leaf.ndim)]).contiguous()


def finite_or_zero(matrices: Tensor) -> Tensor:
    """The matrices, or zeros if an element is NaN or infinite.

    Decompositions raise on such elements, where a gate before should be able to reject the batch; products with the matrices
    themselves keep them visible.
    """
    return torch.where(torch.isfinite(matrices).all(), matrices, torch.zeros_like(matrices))
