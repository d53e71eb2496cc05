"""Joining frames: offsets, precision, references, masks, and padding that harms nobody."""

import numpy as np
import pytest
import torch

from purestep.core import tree
from purestep.data import Padding, PreparedFrames, collate, collate_parts, plan_padding, prepare
from purestep.errors import DataError


class Listed(list):
    fingerprint = "listed"


@pytest.fixture
def prepared(frames):
    return PreparedFrames(Listed(frames), 3.0, dtype=np.float64)


def test_frames_follow_each_other(prepared, frames):
    batch = collate(list(prepared))
    assert np.array_equal(batch.positions, np.concatenate([frame["positions"] for frame in frames]))
    assert batch.ptr.tolist() == [0, 3, 4, 9, 11, 18, 22, 24]
    assert torch.equal(batch.batch, torch.repeat_interleave(torch.arange(7), batch.num_nodes_per_graph))
    assert batch.energy.shape == (7, 1) and batch.numbers.dtype == torch.int64


def test_edges_join_atoms_of_one_graph_nearer_than_the_cutoff(prepared):
    batch = collate(list(prepared))
    sender, receiver = batch.edge_index
    assert torch.equal(batch.batch[sender], batch.batch[receiver])
    assert (batch.positions[sender] - batch.positions[receiver]).norm(dim=1).max() < 3.0
    assert batch.edge_index.shape[1] == sum(frame["edge_index"].shape[1] for frame in prepared)


def test_padding_belongs_to_the_last_graph_and_is_masked(prepared):
    batch = collate(list(prepared)[:3], pad_to=Padding(graphs=6, atoms=14, edges=60))
    assert batch.graph_mask.tolist() == [True] * 3 + [False] * 3
    assert batch.atom_mask.tolist() == [True] * 9 + [False] * 5
    assert batch.batch[9:].tolist() == [5] * 5
    assert batch.ptr.tolist() == [0, 3, 4, 9, 9, 9, 14]
    assert not batch.forces[9:].any() and not batch.energy[3:].any() and not batch.numbers[9:].any()


def test_padding_edges_join_padding_atoms_far_apart(prepared):
    batch = collate(list(prepared)[:3], pad_to=Padding(graphs=4, atoms=11, edges=60))
    sender, receiver = batch.edge_index[:, ~batch.edge_mask]
    assert len(sender) > 20 and not batch.atom_mask[sender].any() and not batch.atom_mask[receiver].any()
    assert (batch.positions[sender] - batch.positions[receiver]).abs().min() > 100


def test_real_parts_of_a_padded_batch_are_those_of_the_plain_one(prepared):
    plain, padded = collate(list(prepared)), collate(list(prepared), pad_to=Padding(9, 40, 300))
    for key in ("positions", "numbers", "forces", "batch"):
        assert torch.equal(padded[key][padded.atom_mask], plain[key])
    assert torch.equal(padded.edge_shift[padded.edge_mask], plain.edge_shift)
    assert torch.equal(padded.edge_index[:, padded.edge_mask], plain.edge_index)
    assert torch.equal(padded.energy[padded.graph_mask], plain.energy)


@pytest.mark.parametrize("pad_to", [None, Padding(5, 30, 200)], ids=["plain", "padded"])
def test_frames_that_only_fill_up_do_not_count(prepared, pad_to):
    batch = collate(list(prepared)[:4], np.array([True, True, False, False]), pad_to=pad_to)
    assert batch.num_nodes_per_graph[:2].tolist() == [3, 1] and not batch.num_nodes_per_graph[2:].any()
    assert int(batch.atom_mask.sum()) == 4 and int(batch.graph_mask.sum()) == 2


def test_a_batch_of_nothing_but_filling_is_all_padding(prepared):
    batch = collate(list(prepared)[:2], np.zeros(2, dtype=bool), pad_to=Padding(3, 10, 20))
    assert not batch.atom_mask.any() and not batch.graph_mask.any() and not batch.edge_mask.any()
    assert torch.isfinite(batch.positions).all()


def test_the_smallest_size_that_fits_is_taken(prepared):
    sizes = (Padding(8, 12, 70), Padding(8, 40, 300))
    assert [collate(list(prepared)[:count], pad_to=sizes).numbers.shape[0] for count in (3, 5)] == [12, 40]


def test_a_batch_that_fits_nowhere_is_an_error_with_its_sizes(prepared):
    with pytest.raises(DataError, match=r"7 graphs, 24 atoms .* fits none of \[\(8, 25, 999\)\]"):
        collate(list(prepared), pad_to=Padding(8, 25, 999))


def test_frames_with_other_keys_are_refused(prepared):
    odd = {key: value for key, value in prepared[1].items() if key != "forces"}
    with pytest.raises(DataError, match="same keys"):
        collate([prepared[0], odd])


def test_references_are_subtracted_before_rounding(frames):
    frame = {**frames[1], "numbers": np.array([8]), "energy": np.float64(-2041.8396277138 + 1e-5)}
    energy = prepare(frame, 3.0, dtype=np.float32, reference_energies={8: -2041.8396277138})["energy"]
    assert energy.dtype == np.float32 and energy == pytest.approx(1e-5, rel=1e-6)


def test_an_element_without_a_reference_is_an_error(frames):
    with pytest.raises(DataError, match=r"elements \[8\]; known: \[1\]"):
        prepare({**frames[1], "numbers": np.array([8])}, 3.0, reference_energies={1: 0.0})


def test_frames_are_prepared_once(prepared):
    assert prepared[2] is prepared[2]


def test_the_way_of_preparing_is_part_of_the_fingerprint(frames):
    ways = [{}, {"cutoff": 4.0}, {"dtype": np.float64}, {"reference_energies": {1: -13.0}}]
    prints = [PreparedFrames(Listed(frames), **({"cutoff": 3.0} | way)).fingerprint for way in ways]
    assert len(set(prints)) == 4 and prints[0] == PreparedFrames(Listed(frames), 3.0).fingerprint


def test_cells_come_per_graph(frames):
    crystal = {**frames[0], "cell": 4 * np.eye(3), "pbc": np.array([True, True, False]), "stress": np.full((3, 3), np.nan)}
    batch = collate([prepare(crystal, 3.0)] * 2, pad_to=Padding(3, 10, 300))
    assert batch.cell.shape == batch.stress.shape == (3, 3, 3)
    assert batch.pbc.tolist() == [[True, True, False]] * 2 + [[False] * 3]
    assert torch.isnan(batch.stress[:2]).all() and not batch.stress[2].any()


def test_the_last_planned_size_holds_the_largest_frames(prepared):
    *_, worst = plan_padding(prepared, 3)
    largest = sorted(prepared, key=lambda frame: len(frame["numbers"]))[-3:]
    assert collate(largest, pad_to=worst).num_graphs == 4
    assert worst.atoms >= 7 + 5 + 4 + 2 and worst.atoms % 8 == 0


def test_usual_batches_take_a_smaller_size(prepared):
    usual, worst = plan_padding(PreparedFrames(Listed(list(prepared.dataset) * 20), 3.0), 16)
    assert usual.graphs == worst.graphs == 17
    assert usual.atoms < worst.atoms and usual.edges < worst.edges


def test_parts_are_batches_of_consecutive_frames(prepared):
    parts = collate_parts(list(prepared), np.arange(7) < 6, parts=3, pad_to=Padding(4, 20, 200))
    expected = [collate(list(prepared)[:3], pad_to=Padding(4, 20, 200)), collate(list(prepared)[3:5], pad_to=Padding(4, 20, 200))]
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(parts[:2]), tree.leaves(expected), strict=True))
    assert parts[2].graph_mask.tolist() == [True, False, False, False]
