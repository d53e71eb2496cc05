"""Checkpoints to which every rank writes its own part, and from which every rank reads its own.

Whether a checkpoint counts is agreed: rank 0 seals it when all have written. The format is the business of the functions given from
outside; what they are told of a part is its path, its tensor and its box in the whole.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import tree
from ..core.ranks import Ranks
from ..core.saved_parts import Box, Part, RankReport, Wanted
from ..errors import DistributedError, StructureMismatchError
from .local import cuts_of, has_own_windows
from .parts import Cut, rows_of
from .topology import Topology


class WritePart(Protocol):
    """Such as `checkpoint.shards.write_rank`: write the parts of a rank into a directory that rank 0 has opened."""

    def __call__(self, directory: str, parts: Sequence[Part], *, rank: int, world_size: int, has_model: bool) -> RankReport:
        """Returns what was written."""
        ...


@runtime_checkable
class PartsWriter(Protocol):
    """What rank 0 needs, beside a `Writer`, for checkpoints in parts."""

    def save_parts(self, state: Any, step: int | None, *, write: Callable[[str], Sequence[RankReport]], **about: Any) -> None:
        """Open a directory, call `write(directory)`, which returns the reports of all ranks, and seal it; if that raises, undo it."""
        ...


def save_in_parts(
    state: Any, writer: PartsWriter | None, write_part: WritePart, ranks: Ranks, step: int | None, about: Mapping[str, Any]
) -> None:
    """Write one checkpoint together; every rank calls this, rank 0 with a writer.

    Raises:
        DistributedError: If it went wrong on another rank; a rank raises its own error. What was there before is untouched.
    """

    def write(directory: str) -> list[RankReport]:
        ranks.settle()  # the others have waited to hear whether the directory is open
        return _write_together(ranks.tell(directory), state, write_part, ranks)

    if writer is None:
        ranks.settle()
        _write_together(ranks.tell(""), state, write_part, ranks)
        ranks.settle()
        return
    try:
        writer.save_parts(state, step, write=write, **about)
    except Exception as error:
        ranks.settle(error=error)
        raise
    ranks.settle()


def _write_together(directory: str, state: Any, write_part: WritePart, ranks: Ranks) -> list[RankReport]:
    own = parts_of_rank(state, ranks)
    written = ranks.together(
        lambda: write_part(directory, own, rank=ranks.rank, world_size=ranks.world_size, has_model=hasattr(state, "params"))
    )
    text = json.dumps([written.files, written.leaves, written.finite])
    return [RankReport(*json.loads(ranks.tell(text, speaker))) for speaker in range(ranks.world_size)]


def parts_of_rank(state: Any, ranks: Ranks) -> list[Part]:
    """What this rank writes: its parts; of what all ranks hold, rank 0 everything."""
    cuts = cuts_of(state)
    parts = [(path, leaf, cuts.get(path)) for path, leaf in tree.items(state)]
    return [
        Part(path, leaf, None if cut is None else Box(_offset(leaf, cut, ranks), _whole(leaf, cut)))
        for path, leaf, cut in parts
        if cut is not None or ranks.rank == 0
    ]


def restore_in_parts(read: Callable[[Mapping[str, Any]], Mapping[str, Tensor]], like: Any, topology: Topology) -> Any:
    """Load a state of which every rank reads its own parts; every rank calls this.

    The checkpoint may be of a run on any number of ranks, one included, in parts or not.

    Args:
        read: `read({path: (offset, shape)}) -> {path: tensor}`, such as `functools.partial(checkpoint.shards.load_parts, root)`.
        like: A state of this training, from `init`; of the device `"meta"`, or not.
        topology: From `init`.

    Raises:
        DistributedError: If another rank could not read its part; a rank raises its own error.
    """
    ranks, cuts = topology.ranks, cuts_of(like)
    if has_own_windows(like):
        raise DistributedError("restore_in_parts: each rank has an accumulation window of its own; use purestep.distributed.restore")
    wanted = {
        path: Wanted(_offset(leaf, cuts[path], ranks) if path in cuts else (0,) * leaf.ndim, tuple(leaf.shape))
        for path, leaf in tree.items(like)
    }

    def load() -> Mapping[str, Tensor]:
        try:
            return read(wanted)
        except StructureMismatchError:  # a run of one process knows no sum over ranks
            return read({path: box for path, box in wanted.items() if ".sum_over_ranks." not in path})

    found = ranks.together(load)
    return tree.map_with_path(lambda path, leaf: _placed(found.get(path, leaf), leaf, topology), like)


def _placed(found: Tensor, like: Tensor, topology: Topology) -> Tensor:
    device = topology.device if like.is_meta else like.device
    if found.is_meta:  # not in the checkpoint: what a sum over ranks begins with
        return torch.zeros(found.shape, dtype=found.dtype, device=device)
    return found.to(device)


def _offset(leaf: Tensor, cut: Cut, ranks: Ranks) -> tuple[int, ...]:
    begin, _ = rows_of(cut.size, ranks)
    return tuple(begin if axis == cut.axis else 0 for axis in range(leaf.ndim))


def _whole(leaf: Tensor, cut: Cut) -> tuple[int, ...]:
    return tuple(cut.size if axis == cut.axis else size for axis, size in enumerate(leaf.shape))
