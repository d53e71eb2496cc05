"""The batch is a tree, knows its sizes, and says what it lacks."""

import pytest
import torch
import torch.utils._pytree as torch_pytree

from purestep.core import tree
from purestep.data import Padding, collate, prepare


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
