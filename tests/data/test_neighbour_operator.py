"""Neighbour lists inside a step: the same as in the loader, anew at each call, with room that is checked."""

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core import tree
from purestep.data import Padding, collate, prepare, with_neighbours
from purestep.errors import DataError

CELL = np.array([[3.0, 0.2, 0.0], [1.4, 2.8, 0.1], [-1.1, 0.9, 2.5]])


def frame(seed, count):
    positions = np.random.default_rng(seed).uniform(size=(count, 3)) @ CELL
    crystal = {"numbers": np.full(count, 29), "positions": positions, "cell": CELL, "pbc": np.array([True, True, False])}
    return prepare(crystal, 2.5, dtype=np.float64)


@pytest.fixture
def batch():
    return collate([frame(0, 3), frame(1, 1), frame(2, 4)], pad_to=Padding(4, 12, 200))


def edges(batch):
    return batch.edge_index[:, batch.edge_mask], batch.edge_shift[batch.edge_mask]


def test_the_list_of_a_batch_is_that_of_its_frames(batch):
    found = with_neighbours(batch.replace(edge_index=None, edge_shift=None, edge_mask=None), 2.5, 150)
    assert all(torch.equal(a, b) for a, b in zip(edges(found), edges(batch), strict=True))
    assert found.edge_index.shape == (2, 150) and found.edge_shift.dtype == torch.float64


def test_padding_edges_join_padding_atoms_and_are_masked(batch):
    found = with_neighbours(batch, 2.5, 150)
    sender, receiver = found.edge_index[:, ~found.edge_mask]
    assert len(sender) and set(sender.tolist()) == {10} and set(receiver.tolist()) == {11} and not found.atom_mask[10:].any()


def test_a_batch_without_padding_cells_or_masks_has_a_list_too(frames):
    plain = collate([prepare(one, 3.0) for one in frames]).replace(atom_mask=None, graph_mask=None)
    found = with_neighbours(plain, 3.0, 200)
    assert torch.equal(edges(found)[0], plain.edge_index)


def test_too_many_edges_are_an_error_with_their_number(batch):
    count = int(batch.edge_mask.sum())
    assert with_neighbours(batch, 2.5, count).edge_mask.all()
    with pytest.raises(DataError, match=f"has {count} edges within 2.5 Angstrom, but there is room for {count - 1}"):
        with_neighbours(batch, 2.5, count - 1)


def pulled(batch):
    """Something differentiable of a list made on the way: the sum of squared edges."""
    found = with_neighbours(batch, 2.5, 150)
    sender, receiver = found.edge_index
    vectors = (
        found.positions[sender] - found.positions[receiver] + (found.edge_shift.unsqueeze(-1) * found.cell[found.batch[receiver]]).sum(-2)
    )
    return torch.where(found.edge_mask, vectors.square().sum(-1), 0.0).sum()


def gradient(batch):
    return torch.func.grad(lambda positions: pulled(batch.replace(positions=positions)))(batch.positions)


def test_a_captured_graph_finds_the_list_of_the_positions_it_is_given(batch):
    captured = make_fx(lambda *leaves: gradient(tree.unflatten(tree.structure(batch), leaves)))(*tree.leaves(batch))
    moved = batch.replace(positions=batch.positions * 1.3)
    assert torch.equal(captured(*tree.leaves(moved)), gradient(moved))
    assert not torch.equal(gradient(moved), gradient(batch))


def test_a_compiled_step_finds_the_list_of_the_positions_it_is_given(batch):
    compiled = torch.compile(pulled, fullgraph=True, backend="aot_eager")
    moved = batch.replace(positions=batch.positions * 1.3)
    assert torch.equal(compiled(batch), pulled(batch)) and torch.equal(compiled(moved), pulled(moved))


def test_members_of_a_map_have_their_own_lists(batch):
    stacked = torch.stack([batch.positions, batch.positions * 1.3])
    found = torch.func.vmap(lambda positions: pulled(batch.replace(positions=positions)))(stacked)
    expected = [pulled(batch.replace(positions=positions)) for positions in stacked]
    assert torch.allclose(found, torch.stack(expected), rtol=1e-14)  # sums in another order


def test_torch_finds_no_fault_with_the_operator(batch):
    from purestep.data.neighbour_operator import padded_neighbour_list

    arguments = (batch.positions, batch.ptr, batch.atom_mask, batch.cell, batch.pbc, 2.5, 150)
    torch.library.opcheck(padded_neighbour_list, arguments, test_utils=("test_schema", "test_faketensor"))
