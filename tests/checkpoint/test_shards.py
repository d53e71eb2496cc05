"""Checkpoints in the files of many ranks, read by any other number; without processes, over files."""

import itertools

import pytest
import torch
from torch.distributed.tensor import Shard

from purestep.checkpoint import load, load_weights, read_manifest, verify
from purestep.checkpoint.layout import Schema
from purestep.checkpoint.shards import even_split, join_reports, load_parts, save_parts, write_rank
from purestep.checkpoint.store import tiling_problem
from purestep.checkpoint.write import About
from purestep.core.saved_parts import Box, Part, RankReport, Wanted
from purestep.errors import CheckpointCorruptError, CheckpointSaveError, StructureMismatchError

WORLDS = range(1, 9)
ABOUT = About(label=0, schema=Schema(name="TrainState", version=1))
LEAVES = {
    "params.long": torch.arange(13 * 3, dtype=torch.float64).reshape(13, 3),
    "params.short": torch.arange(2 * 5, dtype=torch.bfloat16).reshape(2, 5),
    "params.even": torch.arange(8.0),
    "opt_state.empty": torch.empty(0, 4),
    "opt_state.complex": torch.complex(torch.arange(6.0).double(), -torch.arange(6.0).double()).reshape(6, 1),
    "opt_state.replicated": torch.tensor(7),
}


def parts_of(rank, world_size, axis=0):
    """What a rank holds if every leaf with axes is cut along one of them; the leaf without axes is handed in by rank 0."""
    parts = []
    for path, leaf in LEAVES.items():
        if leaf.ndim == 0:
            parts += [Part(path, leaf)] if rank == 0 else []
            continue
        cut = axis % leaf.ndim
        begin, length = even_split(leaf.shape[cut], world_size)[rank]
        offset = tuple(begin if dim == cut else 0 for dim in range(leaf.ndim))
        parts.append(Part(path, leaf.narrow(cut, begin, length), Box(offset, tuple(leaf.shape))))
    return parts


def save_ranks(path, world_size, axis=0):
    save_parts(path, [parts_of(rank, world_size, axis) for rank in range(world_size)], ABOUT, has_model=True)
    return path


@pytest.mark.parametrize("world_size", WORLDS)
def test_what_any_number_of_ranks_wrote_any_other_number_reads(scratch, world_size):
    save_ranks(scratch / "one", world_size, axis=world_size % 2)
    for readers, axis in itertools.product(WORLDS, (0, 1)):
        for rank in range(readers):
            parts = {part.path: part for part in parts_of(rank, readers, axis)}
            wanted = {path: Wanted(part.box.offset if part.box else (), tuple(part.leaf.shape)) for path, part in parts.items()}
            found = load_parts(scratch / "one", wanted)
            assert all(torch.equal(found[path], part.leaf) and found[path].dtype == part.leaf.dtype for path, part in parts.items())


@pytest.mark.parametrize("world_size", WORLDS)
def test_parts_load_into_a_whole_state_like_any_checkpoint(scratch, world_size, assert_same):
    save_ranks(scratch / "one", world_size)
    like = {path: torch.zeros_like(leaf) for path, leaf in LEAVES.items()}
    assert_same(load(scratch / "one", like), LEAVES)
    verify(scratch / "one")
    assert_same(load_weights(scratch / "one"), {path.removeprefix("params."): leaf for path, leaf in LEAVES.items() if "params" in path})


def test_blocks_of_two_axes_are_read_across_their_borders(scratch):
    whole = torch.arange(7 * 10.0).reshape(7, 10)
    blocks = [
        Part("w", whole[i : i + n, j : j + m], Box((i, j), (7, 10)))
        for (i, n), (j, m) in itertools.product(even_split(7, 2), even_split(10, 3))
    ]
    save_parts(scratch / "one", [blocks[::2], blocks[1::2]], ABOUT, has_model=False)
    for i, j, n, m in itertools.product(range(0, 7, 2), range(0, 10, 3), range(1, 4), range(1, 5)):
        shape = (min(n, 7 - i), min(m, 10 - j))
        found = load_parts(scratch / "one", {"w": Wanted((i, j), shape)}, verify="full")["w"]
        assert torch.equal(found, whole[i : i + shape[0], j : j + shape[1]])


@pytest.mark.parametrize(("size", "world_size"), list(itertools.product(range(12), WORLDS)))
def test_the_even_split_is_that_of_dtensor(size, world_size):
    local = [Shard.local_shard_size_and_offset(size, world_size, rank) for rank in range(world_size)]
    assert [(begin, length) for begin, length in even_split(size, world_size) if length] == [(b, n) for n, b in local if n]


def test_files_are_named_by_rank_and_the_manifest_lists_the_pieces(scratch):
    save_ranks(scratch / "one", 3)
    manifest = read_manifest(scratch / "one")
    assert [file.path for file in manifest.files if file.role == "weights"] == [
        f"model-r0000{rank}-of-00003.safetensors" for rank in range(3)
    ]
    pieces = next(leaf for leaf in manifest.leaves if leaf.path == "params.long").pieces
    assert [(piece.offset, piece.shape) for piece in pieces] == [([0, 0], [5, 3]), ([5, 0], [5, 3]), ([10, 0], [3, 3])]


def test_reports_of_ranks_are_plain_json_that_disagreement_and_gaps_are_found_in(scratch):
    reports = []
    for rank in range(3):
        (scratch / str(rank)).mkdir()
        reports.append(write_rank(str(scratch / str(rank)), parts_of(rank, 3), rank=rank, world_size=3, has_model=True))
    join_reports(reports)
    with pytest.raises(CheckpointSaveError, match=r"pieces cover \d+ of \d+ elements; is a part"):
        join_reports(reports[:2])
    with pytest.raises(CheckpointSaveError, match=r"overlap|cover"):
        join_reports([*reports, reports[1]])
    other = [{**leaf, "dtype": "int8"} for leaf in reports[1].leaves]
    with pytest.raises(CheckpointSaveError, match="ranks disagree"):
        join_reports([reports[0], RankReport(reports[1].files, other), reports[2]])


def test_a_box_that_is_not_there_is_refused(scratch):
    save_ranks(scratch / "one", 2)
    wanted = {"params.even": Wanted((4,), (5,)), "nowhere": Wanted((0,), (1,)), "params.long": Wanted((0,), (1,))}
    with pytest.raises(StructureMismatchError, match="3 parts are not in"):
        load_parts(scratch / "one", wanted)


def test_damage_in_the_file_of_another_rank_does_not_matter_until_it_is_read(scratch):
    save_ranks(scratch / "one", 2)
    file = scratch / "one" / "model-r00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    load_parts(scratch / "one", {"params.even": Wanted((0,), (4,))})
    with pytest.raises(CheckpointCorruptError, match="model-r00001"):
        load(scratch / "one", {path: torch.zeros_like(leaf) for path, leaf in LEAVES.items()})


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([([0, 0], [2, 2]), ([1, 1], [1, 2])], "cover 6 of 4|leaves the shape"),
        ([([0, 0], [1, 2]), ([0, 0], [1, 2])], "overlap"),
        ([([0, 0], [1, 2])], "cover 2 of 4"),
        ([([0], [2])], "does not fit"),
        ([([0, -1], [2, 2])], "leaves the shape"),
    ],
)
def test_pieces_that_do_not_tile_are_found(boxes, words):
    assert any(word in tiling_problem([2, 2], boxes) for word in words.split("|"))


def test_random_cuts_tile_and_moved_ones_do_not():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        rows, columns = sorted(torch.randperm(8, generator=generator)[:2].tolist()), int(torch.randint(1, 8, (), generator=generator))
        edges = [0, *[row + 1 for row in rows], 9]
        boxes = [([a, c], [b - a, m]) for a, b in itertools.pairwise(edges) for c, m in ((0, columns), (columns, 9 - columns)) if b > a]
        assert tiling_problem([9, 9], boxes) is None
        moved = [([0, 0], size) if index == len(boxes) - 1 else (offset, size) for index, (offset, size) in enumerate(boxes)]
        assert tiling_problem([9, 9], moved) is not None
