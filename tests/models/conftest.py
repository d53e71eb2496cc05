"""Small molecules and crystals in float64, and the two potentials with random weights."""

import numpy as np
import pytest
import torch

from purestep.data import collate, prepare
from purestep.models import PaiNN, SchNet

MODELS = {"painn": PaiNN, "schnet": SchNet}


@pytest.fixture(params=sorted(MODELS))
def potential(request):
    """A small potential in float64; weights are scaled so that energies curve visibly."""
    torch.manual_seed(1)
    return MODELS[request.param](hidden_size=8, num_layers=2, num_radial=6, cutoff=3.0, max_number=20).double()


@pytest.fixture
def frames():
    """Two molecules of random atoms with random labels, prepared with a neighbour list of 3 Angstrom."""
    rng = np.random.default_rng(0)
    return [prepare(random_molecule(rng, count), 3.0, dtype=np.float64) for count in (5, 3)]


@pytest.fixture
def batch(frames):
    return collate(frames)


@pytest.fixture
def make_batch():
    """From numbers and positions (and a cell) to a batch of one graph."""

    def make(numbers, positions, cell=None):
        frame = {"numbers": np.array(numbers), "positions": np.array(positions, dtype=np.float64)}
        if cell is not None:
            frame |= {"cell": np.array(cell, dtype=np.float64), "pbc": np.ones(3, dtype=bool)}
        return collate([prepare(frame, 3.0, dtype=np.float64)])

    return make


def random_molecule(rng, count):
    return {
        "numbers": rng.choice([1, 6, 7, 8], count),
        "positions": rng.normal(size=(count, 3)) * 1.2,
        "energy": rng.normal(),
        "forces": rng.normal(size=(count, 3)),
    }
