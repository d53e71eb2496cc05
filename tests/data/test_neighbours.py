"""Neighbour lists against every pair tried with every shift, and energies that know of no choice of cell."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from purestep.data import collate, neighbour_list, prepare
from purestep.errors import DataError
from purestep.models import PaiNN
from tests.data.brute_force import brute_force

CELLS = {
    "large cubic": np.diag([9.0, 9.0, 9.0]),
    "smaller than the cutoff": np.diag([1.7, 2.0, 2.3]),
    "triclinic": np.array([[3.0, 0.2, 0.0], [1.4, 2.8, 0.1], [-1.1, 0.9, 2.5]]),
    "very skewed": np.array([[2.0, 0.0, 0.0], [3.9, 2.0, 0.0], [1.0, 4.5, 2.0]]),
    "left-handed": np.array([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 3.0]]),
}


def rows(edge_index, edge_shift):
    return np.concatenate([edge_index.T, edge_shift], axis=1).tolist()


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, True), (False, False, False)], ids=str)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_all_pairs_and_images_are_found(cell, pbc):
    # atoms lie inside and outside the cell
    positions = np.random.default_rng(0).uniform(-0.4, 1.6, size=(4, 3)) @ cell
    assert rows(*neighbour_list(positions, 3.1, cell, np.array(pbc))) == brute_force(positions, 3.1, cell, np.array(pbc)).tolist()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 8),
    size=st.floats(1.2, 6.0),
    cutoff=st.floats(0.3, 3.5),
    pbc=st.tuples(*[st.booleans()] * 3),
)
def test_lists_equal_brute_force_in_any_cell(seed, count, size, cutoff, pbc):
    rng = np.random.default_rng(seed)
    cell = rng.normal(size=(3, 3)) * size
    assume(abs(np.linalg.det(cell)) > 0.15 * np.prod(np.linalg.norm(cell, axis=1)))
    positions = rng.uniform(-0.7, 1.7, size=(count, 3)) @ cell
    expected = brute_force(positions, cutoff, cell, np.array(pbc))
    assert rows(*neighbour_list(positions, cutoff, cell, np.array(pbc))) == expected.tolist()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), pbc=st.tuples(*[st.booleans()] * 3))
def test_a_half_list_and_its_mirror_image_are_the_full_one(seed, pbc):
    rng = np.random.default_rng(seed)
    cell = CELLS["triclinic"]
    positions = rng.uniform(size=(4, 3)) @ cell
    full = {tuple(row) for row in rows(*neighbour_list(positions, 3.5, cell, np.array(pbc)))}
    half = [tuple(row) for row in rows(*neighbour_list(positions, 3.5, cell, np.array(pbc), pairs="half"))]
    mirrored = {(receiver, sender, -a, -b, -c) for sender, receiver, a, b, c in half}
    assert len(half) * 2 == len(full) and set(half) | mirrored == full


def test_vectors_point_from_receivers_to_senders():
    cell = CELLS["triclinic"]
    positions = np.random.default_rng(1).uniform(size=(3, 3)) @ cell
    (sender, receiver), shift = neighbour_list(positions, 3.0, cell, np.ones(3, dtype=bool))
    lengths = np.linalg.norm(positions[sender] - positions[receiver] + shift @ cell, axis=1)
    assert (lengths < 3.0).all() and (lengths > 0).all()


def test_an_atom_sees_its_own_images():
    edge_index, edge_shift = neighbour_list(np.zeros((1, 3)), 2.1, 2.0 * np.eye(3), np.ones(3, dtype=bool))
    assert edge_index.tolist() == [[0] * 6, [0] * 6]
    assert sorted(map(tuple, edge_shift.tolist())) == sorted(map(tuple, np.concatenate([np.eye(3), -np.eye(3)]).astype(int).tolist()))


def test_the_cutoff_itself_is_out_of_reach():
    positions = np.array([[0.0, 0, 0], [1.5, 0, 0]])
    assert neighbour_list(positions, 1.5)[0].shape == (2, 0)
    assert neighbour_list(positions, np.nextafter(1.5, 2))[0].shape == (2, 2)


def test_a_molecule_needs_no_cell_and_ignores_one_that_is_not_periodic():
    positions = np.random.default_rng(2).normal(size=(6, 3))
    plain, boxed = neighbour_list(positions, 2.0), neighbour_list(positions, 2.0, np.eye(3), np.zeros(3, dtype=bool))
    assert rows(*plain) == rows(*boxed) == brute_force(positions, 2.0, np.zeros((3, 3)), np.zeros(3, dtype=bool)).tolist()
    assert (plain[1] == 0).all()


def test_directions_that_are_not_periodic_may_have_zero_cell_vectors():
    cell = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    edge_index, _ = neighbour_list(np.zeros((1, 3)), 4.1, cell, np.array([True, False, False]))
    assert edge_index.shape == (2, 4)


@pytest.mark.parametrize("count", [0, 1])
def test_an_atom_alone_has_no_neighbours(count):
    edge_index, edge_shift = neighbour_list(np.zeros((count, 3)), 5.0)
    assert edge_index.shape == (2, 0) and edge_shift.shape == (0, 3)


@pytest.mark.parametrize("cell", [None, np.zeros((3, 3)), np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])], ids=["none", "zero", "flat"])
def test_a_periodic_cell_without_a_volume_is_refused(cell):
    with pytest.raises(DataError, match="cell"):
        neighbour_list(np.zeros((2, 3)), 3.0, cell, np.ones(3, dtype=bool))


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="cutoff must be positive, got nan"):
        neighbour_list(np.zeros((2, 3)), float("nan"))
    with pytest.raises(ValueError, match="pairs must be 'full' or 'half', got 'all'"):
        neighbour_list(np.zeros((2, 3)), 1.0, pairs="all")
    with pytest.raises(DataError, match="positions are not finite"):
        neighbour_list(np.full((2, 3), np.nan), 1.0)


def energy_per_atom(model, positions, cell):
    frame = {"numbers": np.full(len(positions), 13), "positions": positions, "cell": cell, "pbc": np.ones(3, dtype=bool)}
    batch = collate([prepare(frame, model.cutoff, dtype=np.float64)])
    return model(batch)["energy"].item() / len(positions)


@pytest.mark.parametrize("cutoff", [3.0, 6.0])
def test_energy_per_atom_does_not_depend_on_the_number_of_cells(cutoff):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PaiNN(hidden_size=8, num_layers=2, num_radial=6, cutoff=cutoff).double()
    cell = np.array([[3.9, 0.3, 0.0], [0.2, 4.1, 0.4], [-0.3, 0.1, 4.0]])
    positions = (
        np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]) + np.random.default_rng(3).normal(size=(4, 3)) * 0.03
    ) @ cell
    images = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"), axis=-1).reshape(-1, 1, 3) @ cell
    one, eight = energy_per_atom(model, positions, cell), energy_per_atom(model, (positions + images).reshape(-1, 3), 2 * cell)
    assert one == pytest.approx(eight, abs=1e-10)  # sums in another order


def test_an_isolated_atom_has_its_reference_energy_and_no_force():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PaiNN(hidden_size=8, num_layers=2, num_radial=6, cutoff=3.0, reference_energies={13: -2.5}).double()
    frame = {"numbers": np.array([13]), "positions": np.zeros((1, 3)), "cell": 9 * np.eye(3), "pbc": np.ones(3, dtype=bool)}
    found = model(collate([prepare(frame, 3.0, dtype=np.float64)]))
    assert found["energy"].item() == -2.5 and found["forces"].tolist() == [[0.0] * 3]
