"""Neighbour lists against a count of pairs that does without any cleverness."""

import itertools

import numpy as np
import pytest

from purestep.data import neighbour_list
from purestep.errors import DataError

CELLS = {
    "large cubic": np.diag([9.0, 9.0, 9.0]),
    "smaller than the cutoff": np.diag([1.7, 2.0, 2.3]),
    "triclinic": np.array([[3.0, 0.2, 0.0], [1.4, 2.8, 0.1], [-1.1, 0.9, 2.5]]),
    "very skewed": np.array([[2.0, 0.0, 0.0], [3.9, 2.0, 0.0], [1.0, 4.5, 2.0]]),
    "left-handed": np.array([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 3.0]]),
}


def pairs_one_by_one(positions, cutoff, cell, pbc, reach=12):
    """Every pair with every shift up to a reach that is surely enough."""
    found = set()
    shifts = itertools.product(*[range(-reach, reach + 1) if periodic else (0,) for periodic in pbc])
    for shift in shifts:
        offset = np.array(shift, dtype=np.float64) @ cell
        lengths = np.linalg.norm(positions[None, :] + offset - positions[:, None], axis=-1)  # receiver, sender
        for receiver, sender in np.argwhere(lengths < cutoff):
            if sender != receiver or any(shift):
                found.add((int(sender), int(receiver), *shift))
    return found


def as_set(edge_index, edge_shift):
    rows = [tuple(row) for row in np.concatenate([edge_index.T, edge_shift], axis=1).tolist()]
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, True), (False, False, False)], ids=str)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_all_pairs_and_images_are_found(cell, pbc):
    # atoms lie inside and outside the cell
    positions = np.random.default_rng(0).uniform(-0.4, 1.6, size=(4, 3)) @ cell
    edges = neighbour_list(positions, 3.1, cell, np.array(pbc))
    assert as_set(*edges) == pairs_one_by_one(positions, 3.1, cell, pbc)


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


def test_a_molecule_needs_no_cell_and_ignores_one_that_is_not_periodic():
    positions = np.random.default_rng(2).normal(size=(6, 3))
    plain, boxed = neighbour_list(positions, 2.0), neighbour_list(positions, 2.0, np.eye(3), np.zeros(3, dtype=bool))
    assert as_set(*plain) == as_set(*boxed) == pairs_one_by_one(positions, 2.0, np.zeros((3, 3)), (False,) * 3)
    assert (plain[1] == 0).all()


def test_directions_that_are_not_periodic_may_have_zero_cell_vectors():
    cell = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    edge_index, _ = neighbour_list(np.zeros((1, 3)), 4.1, cell, np.array([True, False, False]))
    assert edge_index.shape == (2, 4)


def test_an_atom_alone_has_no_neighbours():
    edge_index, edge_shift = neighbour_list(np.zeros((1, 3)), 5.0)
    assert edge_index.shape == (2, 0) and edge_shift.shape == (0, 3)


def test_a_list_is_sorted_by_receiver():
    positions = np.random.default_rng(2).normal(size=(6, 3))
    (_, receiver), _ = neighbour_list(positions, 2.0, 3 * np.eye(3), np.ones(3, dtype=bool))
    assert (np.diff(receiver) >= 0).all()


@pytest.mark.parametrize("cell", [None, np.zeros((3, 3)), np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])], ids=["none", "zero", "flat"])
def test_a_periodic_cell_without_a_volume_is_refused(cell):
    with pytest.raises(DataError, match="cell"):
        neighbour_list(np.zeros((2, 3)), 3.0, cell, np.ones(3, dtype=bool))


def test_a_cutoff_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="cutoff must be positive, got nan"):
        neighbour_list(np.zeros((2, 3)), float("nan"))
