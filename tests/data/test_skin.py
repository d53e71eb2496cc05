"""A reused list is the list that would be found anew, for as long as it claims to be."""

import numpy as np
import pytest

from purestep.data import SkinList, neighbour_list, reuse

CELL, PBC = np.array([[3.0, 0.2, 0.0], [1.4, 2.8, 0.1], [-1.1, 0.9, 2.5]]), np.array([True, True, False])
POSITIONS = np.random.default_rng(0).uniform(size=(5, 3)) @ CELL


def test_a_list_is_reused_while_atoms_move_less_than_half_the_skin_and_is_exact():
    rng = np.random.default_rng(1)
    positions, known, founds = POSITIONS, None, []
    for _ in range(40):
        positions = positions + rng.normal(size=positions.shape) * 0.02
        (edge_index, edge_shift), known = reuse(known, positions, 3.0, 0.5, CELL, PBC)
        expected = neighbour_list(positions, 3.0, CELL, PBC)
        assert np.array_equal(edge_index, expected[0]) and np.array_equal(edge_shift, expected[1])
        founds.append(known)
    assert 1 < len({id(found) for found in founds}) < 40


def test_a_step_of_half_the_skin_or_another_cell_ends_the_reuse():
    known = SkinList.at(POSITIONS, 3.0, 0.5, CELL, PBC)
    step = np.zeros_like(POSITIONS)
    step[2, 1] = 0.25
    assert known.serves(POSITIONS + 0.99 * step, CELL, PBC)
    assert not known.serves(POSITIONS + step, CELL, PBC)
    assert not known.serves(POSITIONS, CELL * 1.0001, PBC) and not known.serves(POSITIONS, CELL, ~PBC)
    assert not known.serves(POSITIONS[:4], CELL, PBC) and not known.serves(POSITIONS)


def test_another_cutoff_ends_the_reuse():
    _, known = reuse(None, POSITIONS, 3.0, 0.5)
    assert reuse(known, POSITIONS, 2.0, 0.5)[1] is not known


def test_a_skin_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"skin must be at least 0, got -0\.1"):
        SkinList.at(POSITIONS, 3.0, -0.1)
