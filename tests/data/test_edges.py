"""Edges that frames bring along: written, read, batched and cut with what the user has per edge; wrong ones are refused by frame."""

import numpy as np
import pytest
import torch

from purestep.core import tree
from purestep.data import (
    AtomicStore,
    BudgetBatches,
    Joined,
    Loader,
    Padding,
    Prefetched,
    PreparedFrames,
    append_frames,
    arrays_from_frames,
    collate,
    convert,
    inspect,
    neighbour_list,
    plan_buckets,
    prepare,
    with_neighbours,
    write_store,
)
from purestep.data.padding import sizes_of
from purestep.errors import DataError

LEVELS = {"bond": "edge", "vector": "edge", "charge": "atom"}


def bonded(frame, number):
    """A chain of bonds, in both directions, with an order each; atoms alone have none."""
    count = len(frame["numbers"])
    chain = np.stack([np.arange(count - 1), np.arange(1, count)])
    edges = np.concatenate([chain, chain[::-1]], axis=1)
    return {
        **frame,
        "edge_index": edges,
        "edge_shift": np.zeros((edges.shape[1], 3)),
        "bond": 10.0 * number + np.arange(edges.shape[1]),
        "vector": np.ones((edges.shape[1], 2), dtype=np.int64),
        "charge": np.arange(count) + 0.5,
    }


@pytest.fixture
def chains(frames):
    return [bonded(frame, number) for number, frame in enumerate(frames)]


@pytest.fixture
def store(chains, tmp_path):
    return write_store(tmp_path / "chains.zarr", arrays_from_frames(chains, LEVELS), levels=LEVELS)


def assert_frames_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(found[key], value, equal_nan=True), key


@pytest.mark.parametrize("rows", [3, 1 << 13])
def test_edges_are_read_as_they_were_written(chains, tmp_path, monkeypatch, rows):
    monkeypatch.setattr("purestep.data.writing._CHUNK_ROWS", rows)
    store = write_store(tmp_path / "set.zarr", arrays_from_frames(chains, LEVELS), levels=LEVELS)
    for number, frame in enumerate(chains):
        assert_frames_equal(store[number], frame)
    assert store.column("edge_index").shape == (34, 2) and store.pointers["edge"].tolist() == [0, 4, 4, 12, 14, 26, 32, 34]
    store.verify()


def test_a_store_says_how_many_edges_it_has_and_that_old_versions_cannot_read_it(store):
    assert (store.attributes["version"], store.attributes["num_edges"]) == (3, 34)
    assert store.attributes["levels"]["bond"] == store.attributes["levels"]["edge_index"] == "edge"
    assert "7 frames, 24 atoms, 34 edges" in repr(store)


def test_a_store_without_edges_is_laid_out_as_before(arrays, tmp_path):
    store = write_store(tmp_path / "set.zarr", arrays)
    assert store.attributes["version"] == 1 and "num_edges" not in store.attributes
    assert not (store.path / "edge_ptr").exists() and set(store.pointers) == {"atom"}


@pytest.mark.parametrize("key", ["edge_index", "bond"])
def test_damaged_edges_are_noticed(store, key):
    import zarr

    zarr.open_group(store.path, mode="r+")[key][3] = 0
    with pytest.raises(DataError, match="fingerprint"):
        AtomicStore(store.path).verify()


def test_the_fingerprint_knows_which_frame_has_which_edges(chains, tmp_path):
    arrays = arrays_from_frames([{key: chains[4][key] for key in ("numbers", "positions", "edge_index")}] * 2)
    moved = {**arrays, "edge_ptr": np.array([0, 13, 24])}
    one, other = (write_store(tmp_path / name, found) for name, found in (("a", arrays), ("b", moved)))
    assert one.fingerprint != other.fingerprint


def test_appended_frames_bring_their_edges(chains, tmp_path):
    start = arrays_from_frames([{key: frame[key] for key in frame if key != "bond"} for frame in chains[:4]], LEVELS)
    write_store(tmp_path / "set.zarr", start, levels=LEVELS)
    whole = append_frames(tmp_path / "set.zarr", arrays_from_frames(chains[4:], LEVELS), levels=LEVELS)
    whole.verify()
    assert_frames_equal(whole[5], chains[5])
    assert_frames_equal(whole[2], {**chains[2], "bond": np.full(8, np.nan)})
    assert whole.attributes["num_edges"] == 34 and whole.attributes["labelled_frames"]["bond"] == 3
    assert np.isnan(whole.column("bond")).sum() == 14 and len(whole.column("edge_index")) == 34


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_frames_with_and_without_edges_make_no_store(chains, frames, tmp_path, first, second):
    both = [arrays_from_frames(chains[:3], LEVELS), arrays_from_frames(frames[3:])]
    store = write_store(tmp_path / "set.zarr", both[first], levels=LEVELS)
    with pytest.raises(DataError, match="edge_index: some frames have it and some do not"):
        append_frames(store.path, both[second], levels=LEVELS)
    assert len(AtomicStore(store.path)) == len(store)
    with pytest.raises(DataError, match="frame 1: has no edge_index, which other frames have"):
        arrays_from_frames([chains[0], frames[1]], LEVELS)


WRONG = [
    ({"edge_index": np.array([[0, 3], [1, 0]])}, "edge_index has an edge from atom 3 to atom 0, but the frame has the atoms 0 to 2"),
    ({"edge_index": np.array([[0, 1], [-1, 0]])}, "edge_index has an edge from atom 0 to atom -1"),
    ({"edge_index": np.array([[0, 1, 2]])}, r"edge_index is int64 \(1, 3\), expected whole numbers \(2, E\)"),
    ({"edge_index": np.array([[0.0], [1.0]])}, r"edge_index is float64 \(2, 1\), expected whole numbers"),
    ({"bond": np.zeros(3)}, r"bond has the shape \(3,\), expected 4 rows, one per edge"),
    ({"edge_shift": np.zeros((4, 2))}, r"edge_shift is float64 \(4, 2\), expected whole numbers of cell vectors \(E, 3\)"),
    ({"edge_shift": np.full((4, 3), 0.5)}, "edge_shift is float64"),
    ({"edge_index": None}, "has edge_shift, bond, vector with rows per edge, but no edge_index"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_edges_are_refused_with_their_frame_before_anything_is_written(chains, tmp_path, change, message):
    wrong = {key: value for key, value in (chains[0] | change).items() if value is not None}
    with pytest.raises(DataError, match=f"frame 1: .*{message}"):
        arrays_from_frames([chains[1], wrong], LEVELS)
    with pytest.raises(DataError, match=f"frame 1: .*{message}"):
        convert([chains[1], wrong], tmp_path / "set.zarr", levels=LEVELS)
    with pytest.raises(DataError, match=message):
        prepare(wrong, 3.0, levels=LEVELS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_ptr": None}, "a store needs the arrays edge_ptr"),
        ({"edge_ptr": np.arange(7)}, "edge_ptr must start at 0 and never descend, with 8 whole numbers for 7 frames"),
        (
            {"edge_ptr": np.array([0, 4, 4, 4, 4, 4, 4, 30])},
            r"edge_index: shape \(34, 2\), expected \(30, 2\) for 7 frames and 24 atoms and 30 edges",
        ),
        ({"edge_ptr": np.array([0, 4, 5, 12, 14, 26, 32, 34])}, "frame 1: edge_index has an edge from atom 0 to atom 1, .* 0 to 0"),
        ({"edge_index": np.zeros((34, 2))}, "edge_index: float64, expected whole numbers"),
        ({"edge_shift": np.full((34, 3), np.nan)}, "frame 0: edge_shift is not a whole number"),
        ({"edge_index": None}, "a store needs the arrays edge_index"),
    ],
)
def test_flat_edges_that_contradict_each_other_are_refused(chains, tmp_path, change, message):
    order = ("ptr", "numbers", "positions", "edge_ptr", "bond", "edge_index", "edge_shift")
    arrays = arrays_from_frames(chains, LEVELS)
    changed = {key: value for key, value in ({key: arrays[key] for key in order} | change).items() if value is not None}
    with pytest.raises(DataError, match=message):
        write_store(tmp_path / "set.zarr", changed, levels={"bond": "edge"})
    assert list(tmp_path.iterdir()) == []


def test_frames_keep_their_own_edges_in_place_of_a_neighbour_list(chains):
    prepared = prepare(chains[4], 0.1, levels=LEVELS)
    assert np.array_equal(prepared["edge_index"], chains[4]["edge_index"]) and prepared["edge_shift"].shape == (12, 3)
    assert prepared["per_edge/bond"].dtype == np.float32 and prepared["per_edge/vector"].dtype == np.int64
    bare = {key: value for key, value in chains[4].items() if key in ("numbers", "positions", "edge_index")}
    assert np.array_equal(prepare(bare, 0.1)["edge_shift"], np.zeros((12, 3)))


def test_stored_neighbour_lists_of_crystals_give_the_batches_of_computed_ones(frames, tmp_path):
    crystals = [{**frame, "cell": 4.0 * np.eye(3), "pbc": np.array([True, True, False])} for frame in frames]
    lists = [neighbour_list(frame["positions"], 3.0, frame["cell"], frame["pbc"]) for frame in crystals]
    listed = [{**frame, "edge_index": edges, "edge_shift": shift} for frame, (edges, shift) in zip(crystals, lists, strict=True)]
    store = write_store(tmp_path / "set.zarr", arrays_from_frames(listed))
    found, expected = collate(list(PreparedFrames(store, 0.1))), collate([prepare(frame, 3.0) for frame in crystals])
    assert found.edge_shift.any() and tree.paths(found) == tree.paths(expected)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found), tree.leaves(expected), strict=True))


def test_arrays_per_edge_go_from_store_to_batch_padded_and_by_name(store, chains):
    batch = collate(list(PreparedFrames(store, 3.0))[:3], pad_to=Padding(5, 12, 16))
    assert batch["bond"].tolist() == [0, 1, 2, 3, *range(20, 28), 0, 0, 0, 0] and batch["vector"].shape == (16, 2)
    assert batch.edge_mask.tolist() == [True] * 12 + [False] * 4
    expected = np.concatenate([chains[0]["edge_index"], chains[2]["edge_index"] + 4], axis=1)
    assert np.array_equal(batch.edge_index[:, :12], expected)
    assert {"bond", "vector", "charge"} <= set(batch.keys()) and "per_edge.bond" in tree.paths(batch) and "bond=float32[16]" in repr(batch)
    assert tree.map(lambda leaf: leaf + 1, batch)["vector"][:12].eq(2).all()


def test_arrays_per_edge_are_cut_with_the_batch(store):
    prepared = list(PreparedFrames(store, 3.0))
    parts = collate(prepared).cut(3)
    expected = [collate(prepared[:3]), collate(prepared[3:5]), collate(prepared[5:])]
    assert tree.paths(parts) == tree.paths(expected)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(parts), tree.leaves(expected), strict=True))


def test_buckets_count_the_edges_that_frames_bring_along(store):
    prepared = PreparedFrames(store, 100.0)
    edges = np.array([sizes_of([frame]).edges for frame in prepared])
    assert edges.tolist() == [4, 0, 8, 2, 12, 6, 2]
    batches = BudgetBatches(edges, 20)
    plan = plan_buckets(prepared, batches, num_sizes=2)
    loader = Loader(prepared, batches, collate=lambda frames, mask: collate(frames, mask, pad_to=plan.sizes))
    assert {batch["bond"].shape[0] for batch in loader} <= {size.edges for size in plan.sizes}
    with Prefetched(loader, num_workers=2) as prefetched:
        assert all(torch.equal(a["bond"], b["bond"]) for a, b in zip(prefetched, loader, strict=True))


def test_joined_stores_keep_arrays_per_edge(store, chains, tmp_path):
    bare = [{key: value for key, value in frame.items() if key not in ("bond", "edge_shift")} for frame in chains]
    other = write_store(tmp_path / "bare.zarr", arrays_from_frames(bare, LEVELS), levels=LEVELS)
    batch = collate([PreparedFrames(Joined(store, other), 3.0)[number] for number in (0, 9)])
    assert batch["bond"][:4].tolist() == [0, 1, 2, 3] and batch["bond"][4:].isnan().tolist() == [True] * 8


def test_joined_stores_of_which_one_has_no_edges_for_what_is_per_edge_are_an_error(store, arrays, tmp_path):
    joined = Joined(store, write_store(tmp_path / "bare.zarr", arrays))
    with pytest.raises(DataError, match="a frame has no edge_index, where others have arrays per edge"):
        joined[8]


def test_joined_stores_may_mix_edges_of_frames_with_neighbour_lists(chains, arrays, tmp_path):
    bare = [{key: value for key, value in frame.items() if key in (*arrays, "edge_index")} for frame in chains]
    joined = Joined(write_store(tmp_path / "own.zarr", arrays_from_frames(bare)), write_store(tmp_path / "none.zarr", arrays))
    batch = collate([PreparedFrames(joined, 3.0)[number] for number in (4, 11)])
    listed = neighbour_list(chains[4]["positions"], 3.0)[0]
    assert np.array_equal(batch.edge_index, np.concatenate([chains[4]["edge_index"], listed + 7], axis=1))


def test_a_list_found_in_the_step_leaves_out_what_belonged_to_other_edges(store):
    batch = with_neighbours(collate(list(PreparedFrames(store, 3.0))), 3.0, 300)
    assert batch.edge_index.shape == (2, 300) and batch.per_edge is None and batch.per_atom is not None


def test_conversion_keeps_edges_and_converts_them_again(chains, tmp_path):
    records = [{("pairs" if key == "edge_index" else key): value for key, value in frame.items()} for frame in chains]
    store, report = convert(records, tmp_path / "set.zarr", keys={"edge_index": "pairs"}, levels=LEVELS)
    assert_frames_equal(store[4], chains[4])
    assert set(report.labelled) == {"energy", "forces", "bond", "vector", "charge"}
    again = convert(store, tmp_path / "again.zarr", levels=LEVELS).store
    flat = {key: store.column(key) for key in store.levels} | {"ptr": store.ptr, "edge_ptr": store.pointers["edge"]}
    np.savez(tmp_path / "set.npz", **flat)
    assert again.fingerprint == convert(tmp_path / "set.npz", tmp_path / "npz.zarr", levels=LEVELS).store.fingerprint == store.fingerprint


def test_inspection_counts_edges(store):
    found = inspect(store.path)
    assert found.coverage["bond"] == 7 and found.histograms["edges of a frame"].edges[-1] == 12
    assert "edges of a frame" in str(found)
