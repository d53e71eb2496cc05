"""A small set of random molecules and crystals, as flat arrays and as frames."""

import numpy as np
import pytest


@pytest.fixture
def arrays():
    """Seven frames of one to seven atoms with energies, forces and a split."""
    rng = np.random.default_rng(3)
    counts = np.array([3, 1, 5, 2, 7, 4, 2])
    ptr = np.concatenate([[0], np.cumsum(counts)])
    numbers = rng.choice([1, 6, 8], ptr[-1]).astype(np.uint8)
    return {
        "ptr": ptr,
        "numbers": numbers,
        "positions": rng.normal(size=(ptr[-1], 3)) * 1.5,
        "forces": rng.normal(size=(ptr[-1], 3)),
        "energy": rng.normal(size=len(counts)) - 10.0,
        "split": np.array([0, 0, 0, 0, 1, 2, 2], dtype=np.uint8),
    }


@pytest.fixture
def frames(arrays):
    """The same as a list of frames."""
    bounds = list(zip(arrays["ptr"][:-1], arrays["ptr"][1:], strict=True))
    return [
        {key: arrays[key][first:end] for key in ("numbers", "positions", "forces")} | {"energy": arrays["energy"][number]}
        for number, (first, end) in enumerate(bounds)
    ]
