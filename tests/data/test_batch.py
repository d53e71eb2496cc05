"""The batch is a tree, knows its sizes, and says what it lacks."""

import numpy as np
import pytest
import torch
import torch.utils._pytree as torch_pytree

from purestep.core import tree
from purestep.data import Padding, PreparedFrames, collate, prepare, write_store


@pytest.fixture
def batch(frames):
    return collate([prepare(frame, 3.0) for frame in frames[:3]], pad_to=Padding(5, 12, 40))


def test_leaves_are_named_by_their_fields_and_absent_fields_are_no_leaves(batch):
    assert tree.paths(batch) == batch.keys()
    assert "cell" not in batch and "energy" in batch


def test_a_tree_function_gives_a_batch_again(batch):
    doubled = tree.map(lambda leaf: leaf * 2 if leaf.is_floating_point() else leaf, batch)
    assert type(doubled) is type(batch)
    assert torch.equal(doubled.energy, 2 * batch.energy) and doubled.cell is None
    flat, structure = torch_pytree.tree_flatten(batch)
    assert torch_pytree.tree_unflatten(flat, structure).positions is batch.positions


def test_sizes_count_graphs_with_padding_and_real_atoms_only(batch):
    assert batch.num_graphs == 5
    assert batch.num_nodes_per_graph.tolist() == [3, 1, 5, 0, 0]
    assert batch.batch.bincount(minlength=5).tolist() == [3, 1, 5, 0, 3]


def test_a_field_is_read_by_its_name(batch):
    assert batch["energy"] is batch.energy


@pytest.mark.parametrize("key", ["stress", "charge", "num_graphs"])
def test_a_missing_field_is_an_error_that_lists_the_others(batch, key):
    with pytest.raises(KeyError, match=f"no '{key}'; it carries positions, numbers"):
        batch[key]


def test_a_batch_cannot_be_changed_but_replaced(batch):
    with pytest.raises(AttributeError):
        batch.energy = None
    changed = batch.replace(energy=None)
    assert changed.energy is None and batch.energy is not None


def test_repr_shows_shapes(batch):
    assert repr(batch).startswith("AtomicBatch(positions=float32[12, 3], numbers=int64[12], batch=int64[12], ptr=int64[6]")


def test_to_moves_every_field(batch):
    moved = batch.to("meta")
    assert {leaf.device.type for leaf in tree.leaves(moved)} == {"meta"}


def test_the_parts_of_a_batch_are_the_batches_of_its_parts(frames):
    prepared = [prepare(frame, 3.0) for frame in frames]
    parts = collate(prepared).cut(3)
    expected = [collate(prepared[:3]), collate(prepared[3:5]), collate(prepared[5:])]
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(parts), tree.leaves(expected), strict=True))


def test_padding_stays_with_the_part_that_holds_it(batch):
    first, second = batch.cut(2)
    assert (first.num_graphs, second.num_graphs) == (3, 2)
    assert first.atom_mask.all() and not second.atom_mask.any()
    assert first.edge_mask.all() and not second.edge_mask.any()
    assert torch.equal(second.batch[second.edge_index[0]], second.batch[second.edge_index[1]])


def test_a_batch_is_not_cut_into_more_parts_than_graphs(batch):
    with pytest.raises(ValueError, match="cannot cut 5 graphs into 6 parts"):
        batch.cut(6)


@pytest.fixture
def batch_with_others(frames):
    levels = {"charge": "atom", "spin": "frame", "axis": "frame"}
    more = [{**f, "charge": np.arange(len(f["numbers"])) + 0.5, "spin": np.int64(n), "axis": np.full(3, n)} for n, f in enumerate(frames)]
    return collate([prepare(frame, 3.0, levels=levels) for frame in more[:3]], pad_to=Padding(5, 12, 40))


def test_arrays_of_the_user_come_along_padded_and_are_read_by_name(batch_with_others):
    batch = batch_with_others
    assert batch["charge"].tolist() == [0.5, 1.5, 2.5, 0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 0, 0, 0] and batch["charge"].dtype == torch.float32
    assert batch["spin"].tolist() == [0, 1, 2, 0, 0] and batch["axis"].shape == (5, 3) and {"charge", "spin"} <= set(batch.keys())
    assert "per_atom.charge" in tree.paths(batch) and "spin=int64[5]" in repr(batch)
    assert tree.map(lambda leaf: leaf + 1, batch)["spin"].tolist() == [1, 2, 3, 1, 1]


def test_arrays_of_the_user_are_cut_with_the_batch(batch_with_others):
    first, second = batch_with_others.cut(2)
    assert first["charge"].shape == (9,) and second["charge"].shape == (3,) and second["spin"].tolist() == [0, 0]


def test_arrays_of_the_user_go_from_store_to_batch(arrays, tmp_path):
    more = {"charge": np.arange(24.0), "spin": np.arange(7)}
    store = write_store(tmp_path / "set.zarr", arrays | more, levels={"charge": "atom", "spin": "frame"})
    batch = collate([PreparedFrames(store.split("train"), 3.0)[number] for number in range(4)])
    assert torch.equal(batch["charge"], torch.arange(11.0)) and batch["spin"].tolist() == [0, 1, 2, 3]
