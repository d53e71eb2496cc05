"""Leaves in parts: what each rank writes into files of its own, how that becomes one manifest, and how other ranks read their parts.

A part is a box of a leaf. The manifest's table of pieces says which box is which tensor of which file, so any number of ranks can read
what any other number wrote: each takes the pieces that meet its boxes. Nothing here communicates; the ranks' reports are plain JSON
for whoever gathers them.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core.saved_parts import Box, Part, RankReport, Wanted
from ..errors import CheckpointSaveError, StructureMismatchError
from . import layout
from .layout import Placed
from .manifest import FileRecord, Leaf
from .read import Request, Verify, check_memory, new_tensor, read_all
from .restore import with_checkpoint
from .staging import commit, staging
from .store import Checkpoint, tiling_problem
from .tensorfile import dtype_from_name, num_bytes
from .write import About, encode_checked, make_manifest, saving, write_files


def even_split(size: int, world_size: int) -> list[tuple[int, int]]:
    """Begin and length of each rank's part of an axis: equal parts of `ceil(size / world_size)`, the last ones shorter or empty.

    The same as `torch.chunk` and DTensor's `Shard`.

    Example:
        >>> even_split(5, 4)
        [(0, 2), (2, 2), (4, 1), (5, 0)]
    """
    length = -(-size // world_size)
    begins = [min(rank * length, size) for rank in range(world_size)]
    return [(begin, min(length, size - begin)) for begin in begins]


def rank_file(file: str, rank: int, world_size: int) -> str:
    """Name of a rank's file.

    Example:
        >>> rank_file("model.safetensors", 3, 8)
        'model-r00003-of-00008.safetensors'
    """
    stem, _, suffix = file.partition(".")
    return f"{stem}-r{rank:05d}-of-{world_size:05d}.{suffix}"


def write_rank(directory: str, parts: Sequence[Part], *, rank: int, world_size: int, has_model: bool) -> RankReport:
    """Write the parts of one rank into files of its own in a staging directory.

    Args:
        has_model: Whether the leaves belong to a training state, whose weights go into a file of their own.

    Raises:
        CheckpointSaveError: If a part cannot be stored.
        OSError: If the system fails.
    """
    whole = [layout.place_leaf(part.path, part.leaf, has_model)._replace(box=part.box) for part in parts if not _is_empty(part)]
    placed = _told_apart([item._replace(file=rank_file(item.file, rank, world_size)) for item in whole])
    files, leaves = write_files(directory, placed)
    return RankReport([file.model_dump() for file in files], [leaf.model_dump() for leaf in leaves], layout.has_finite_weights(whole))


def _is_empty(part: Part) -> bool:
    # an empty part of something has nothing to say; of an empty leaf, the part at the origin says that it is there
    return part.box is not None and part.leaf.numel() == 0 and any(part.box.offset)


def _told_apart(placed: list[Placed]) -> list[Placed]:
    """Names with the offset added where a rank holds several parts of one leaf."""
    counts = Counter(item.path for item in placed)
    return [
        item._replace(name=f"{item.name}@{','.join(map(str, item.box.offset))}") if counts[item.path] > 1 and item.box else item
        for item in placed
    ]


def join_reports(reports: Sequence[RankReport]) -> tuple[list[FileRecord], list[Leaf]]:
    """Put the reports of all ranks together.

    Raises:
        CheckpointSaveError: If they disagree about a leaf, or their parts do not cover it exactly once.
    """
    files = [FileRecord.model_validate(file) for report in reports for file in report.files]
    leaves: dict[str, Leaf] = {}
    for report in reports:
        for fields in report.leaves:
            leaf = Leaf.model_validate(fields)
            known = leaves.get(leaf.path)
            if known is not None and (known.kind, known.value, known.dtype, known.shape) != (leaf.kind, leaf.value, leaf.dtype, leaf.shape):
                raise CheckpointSaveError(f"ranks disagree about {leaf.path!r}: {known.dtype}{known.shape} and {leaf.dtype}{leaf.shape}")
            pieces = leaf.pieces if known is None else [*known.pieces, *leaf.pieces]
            leaves[leaf.path] = leaf.model_copy(update={"pieces": pieces})
    for leaf in leaves.values():
        problem = tiling_problem(leaf.shape, [(piece.offset, piece.shape) for piece in leaf.pieces])
        if problem:
            raise CheckpointSaveError(f"{leaf.path!r}: {problem}; is a part handed in twice, or not at all?")
    return files, [leaves[path] for path in sorted(leaves)]


def save_parts(path: str | os.PathLike, ranks: Sequence[Sequence[Part]], about: About, *, has_model: bool) -> str:
    """Write a checkpoint in the files of many ranks from one process.

    Returns:
        The new checkpoint's id.
    """
    target = os.path.abspath(os.fspath(path))
    with saving(target), staging(target) as stage:
        written = [write_rank(stage.path, parts, rank=rank, world_size=len(ranks), has_model=has_model) for rank, parts in enumerate(ranks)]
        manifest = make_manifest(*join_reports(written), about)
        commit(stage, encode_checked(manifest))
    return manifest.checkpoint_id


def load_parts(
    path: str | os.PathLike, wanted: Mapping[str, Wanted], *, step: int | str = "latest", verify: Verify = "crc"
) -> dict[str, Tensor]:
    """Read boxes of leaves, however they were cut when they were written.

    Every piece that is touched is read whole and compared with its checksum, but files are not read to the end for their SHA-256 unless
    `verify` is `"full"`.

    Raises:
        StructureMismatchError: If a leaf is not there, or a box leaves it.
    """

    def read(checkpoint: Checkpoint) -> dict[str, Tensor]:
        leaves = {leaf.path: leaf for leaf in checkpoint.manifest.leaves if leaf.kind == "tensor"}
        problems = [line for path, box in wanted.items() for line in _box_problems(path, box, leaves.get(path))]
        if problems:
            raise StructureMismatchError(f"{len(problems)} parts are not in {checkpoint.path}:\n  " + "\n  ".join(problems[:50]))
        needed = sum(num_bytes(dtype_from_name(leaves[path].dtype), box.shape) for path, box in wanted.items())
        check_memory(checkpoint.manifest, needed, checkpoint.path)
        memory = {path: new_tensor(leaves[path], box.shape) for path, box in wanted.items()}
        read_all(checkpoint, [Request(leaves[p], Box(box.offset, tuple(leaves[p].shape)), memory[p]) for p, box in wanted.items()], verify)
        return memory

    return with_checkpoint(path, read, step=step)


def _box_problems(path: str, box: Wanted, leaf: Leaf | None) -> list[str]:
    if leaf is None:
        return [f"missing in checkpoint: {path}"]
    fits = len(box.offset) == len(box.shape) == len(leaf.shape) and all(
        0 <= offset and 0 <= size and offset + size <= whole for offset, size, whole in zip(box.offset, box.shape, leaf.shape, strict=True)
    )
    return [] if fits else [f"box: {path} has shape {leaf.shape}, wanted {list(box.shape)} at {list(box.offset)}"]
