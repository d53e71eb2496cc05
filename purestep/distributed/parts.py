"""Leaves in parts: where a leaf is cut, this rank's part of it, and the two collectives between parts and whole leaves.

A leaf is cut along one axis into parts of `ceil(size / world)`, the last ones shorter or empty, as `torch.chunk` and DTensor's `Shard`
do. A part keeps the number of axes of its leaf, and is always shorter than it: leaves of a single element are not cut, every rank holds
them. What is kept in parts, and when it is whole, is in `sharding.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.ranks import Ranks
from ..errors import DistributedError
from .collective import gather_over, scatter_sum_over

_BUCKET_BYTES = 2**27  # of whole parameters that are gathered, and whose gradients are summed, at once


class Cut(NamedTuple):
    """Where a leaf is cut."""

    axis: int
    size: int  # of the whole leaf along it


Cuts = Sequence[Cut | None]
"""For each leaf where it is cut; None: every rank holds the whole of it."""


def cut_of(leaf: Tensor, world_size: int) -> Cut | None:
    """Where to cut: along the first axis that gives equal parts, else along the longest."""
    if leaf.numel() <= 1:
        return None
    even = (axis for axis, size in enumerate(leaf.shape) if size % world_size == 0)
    axis = next(even, max(range(leaf.ndim), key=lambda i: leaf.shape[i]))
    return Cut(axis, leaf.shape[axis])


def rows_of(size: int, ranks: Ranks) -> tuple[int, int]:
    """Begin and length of this rank's part of an axis."""
    length = -(-size // ranks.world_size)
    begin = min(ranks.rank * length, size)
    return begin, min(length, size - begin)


def part_of(leaf: Tensor, cut: Cut | None, ranks: Ranks) -> Tensor:
    """This rank's part, a view of the leaf."""
    return leaf if cut is None else leaf.narrow(cut.axis, *rows_of(cut.size, ranks))


def whole_on_meta(part: Tensor, cut: Cut) -> Tensor:
    """A leaf of the whole shape that takes no memory."""
    return part.new_empty([cut.size if axis == cut.axis else size for axis, size in enumerate(part.shape)], device="meta")


def gather_parts(parts: Sequence[Tensor], cuts: Cuts, ranks: Ranks) -> list[Tensor]:
    """Whole leaves out of the parts that all ranks hold, by one gathering for each dtype."""
    whole = list(parts)
    for members in _by_dtype(parts, cuts, lambda dtype: dtype):
        padded = [real(_padded(parts[i], _length(cuts[i], ranks), cuts[i])) for i in members]
        table = gather_over(torch.cat([part.reshape(-1) for part in padded]), world_size=ranks.world_size)
        for i, part, columns in zip(members, padded, table.split([part.numel() for part in padded], 1), strict=True):
            cut = cuts[i]
            assert cut is not None
            rows = columns.reshape(ranks.world_size, *part.shape).movedim(0, cut.axis).flatten(cut.axis, cut.axis + 1)
            whole[i] = _as_before(rows.narrow(cut.axis, 0, cut.size), parts[i])
    return whole


def scatter_sum(leaves: Sequence[Tensor], cuts: Cuts, ranks: Ranks) -> list[Tensor]:
    """This rank's parts of the sums of leaves over all ranks, by one collective for each dtype; leaves that are not cut whole.

    Leaves narrower than float32 are added as float32, and rounded once.
    """
    parts = list(leaves)
    everything = [cut or Cut(0, 1) for cut in cuts]
    for members in _by_dtype(leaves, everything, lambda dtype: torch.promote_types(dtype, torch.float32)):
        wide = torch.promote_types(real(leaves[members[0]]).dtype, torch.float32)
        tables = [_table(real(leaves[i]).to(wide), cuts[i], ranks) for i in members]
        own = scatter_sum_over(torch.cat([table.reshape(ranks.world_size, -1) for table in tables], 1), world_size=ranks.world_size)
        for i, table, flat in zip(members, tables, own.split([table[0].numel() for table in tables]), strict=True):
            cut, row = cuts[i], flat.view(table.shape[1:])
            row = row if cut is None else row.narrow(cut.axis, 0, rows_of(cut.size, ranks)[1])
            parts[i] = _as_before(row.to(real(leaves[i]).dtype), leaves[i])
    return parts


class _Gather(torch.autograd.Function):
    """`gather_parts`; the gradient of a part is this rank's part of the sum of all ranks' gradients of the whole.

    One function for all leaves, though they travel in pieces: its way back is gone on every rank, whatever the rank's share reaches.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(cuts: Cuts, ranks: Ranks, reached: set[int], *parts: Tensor) -> tuple[Tensor, ...]:
        whole: list[Tensor] = []
        for begin, end in _buckets(_whole_bytes(parts, ranks)):
            whole += gather_parts(parts[begin:end], cuts[begin:end], ranks)
        # a leaf that is not cut needs an output of its own, which has a gradient of its own
        return tuple(leaf.clone() if leaf is part else leaf for leaf, part in zip(whole, parts, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.cuts, ctx.ranks, ctx.reached, *parts = inputs
        ctx.buckets = list(_buckets(_whole_bytes(parts, ctx.ranks)))
        ctx.kinds = [(leaf.shape, leaf.dtype, leaf.device) for leaf in output]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.kinds, strict=True)
        ]
        # a leaf that the loss does not reach here may have a gradient from elsewhere: autograd cannot tell, so it is noted
        ctx.reached.update(i for i, gradient in enumerate(gradients) if gradient is not None)
        own: list[Tensor] = []
        for begin, end in ctx.buckets:
            own += scatter_sum(filled[begin:end], ctx.cuts[begin:end], ctx.ranks)
        return None, None, None, *own


def gather_differentiably(parts: Sequence[Tensor], cuts: Cuts, ranks: Ranks, reached: set[int]) -> list[Tensor]:
    """Whole leaves; a gradient that comes back is added over ranks and cut.

    Args:
        reached: Where the backward pass notes the numbers of leaves that the loss of this rank depends on.

    Raises:
        DistributedError: While Dynamo traces, which would leave out the way back without a word.
    """
    if torch.compiler.is_dynamo_compiling():
        raise DistributedError(
            "parameters in parts cannot be captured by Dynamo, which leaves out how their gradients come back; use purestep.compile(step) "
            "with capture='auto' or 'trace'"
        )
    return list(_Gather.apply(tuple(cuts), ranks, reached, *parts)) if parts else []


def _whole_bytes(parts: Sequence[Tensor], ranks: Ranks) -> list[int]:
    return [part.numel() * part.element_size() * ranks.world_size for part in parts]


def _buckets(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of leaves of at most so many bytes, or of a single larger leaf, which travel together."""
    begin, held = 0, 0
    for i, size in enumerate(sizes):
        if held and held + size > _BUCKET_BYTES:
            yield begin, i
            begin, held = i, 0
        held += size
    if sizes:
        yield begin, len(sizes)


def _by_dtype(leaves: Sequence[Tensor], cuts: Cuts, key: Callable[[torch.dtype], torch.dtype]) -> list[list[int]]:
    """Numbers of the leaves that are cut, those of one dtype together."""
    groups: dict[torch.dtype, list[int]] = {}
    for i, (leaf, cut) in enumerate(zip(leaves, cuts, strict=True)):
        if cut is not None:
            groups.setdefault(key(real(leaf).dtype), []).append(i)
    return list(groups.values())


def _length(cut: Cut | None, ranks: Ranks) -> int:
    return -(-cut.size // ranks.world_size) if cut else 0


def _padded(leaf: Tensor, length: int, cut: Cut | None) -> Tensor:
    """Filled up with zeros along the axis of the cut."""
    missing = length - leaf.shape[cut.axis] if cut else 0
    if not cut or not missing:
        return leaf
    shape = [missing if axis == cut.axis else size for axis, size in enumerate(leaf.shape)]
    return torch.cat([leaf, leaf.new_zeros(shape)], cut.axis)


def _table(leaf: Tensor, cut: Cut | None, ranks: Ranks) -> Tensor:
    """What each rank is to get of a leaf, along a new first axis."""
    if cut is None:
        return leaf.expand(ranks.world_size, *leaf.shape)
    length = _length(cut, ranks)
    padded = _padded(leaf, length * ranks.world_size, cut)
    shape = (*leaf.shape[: cut.axis], ranks.world_size, length, *leaf.shape[cut.axis + 1 :])
    return padded.reshape(shape).movedim(cut.axis, 0)


def real(leaf: Tensor) -> Tensor:
    """The same numbers as real ones."""
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf


def _as_before(leaf: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(leaf.contiguous()) if like.is_complex() else leaf
