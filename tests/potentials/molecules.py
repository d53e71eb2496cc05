"""Small molecules, shaken anew in each batch, with made-up labels: all batches have the same shapes and edges."""

from typing import Any

import numpy as np

NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8}
REFERENCES = {1: -13.0, 6: -1029.0, 7: -1484.0, 8: -2042.0}
"""Energies of free atoms, eV, roughly."""
MOLECULES = {
    "water": ("OHH", [[0.0, 0.0, 0.12], [0.0, 0.76, -0.48], [0.0, -0.76, -0.48]]),
    "ammonia": ("NHHH", [[0.0, 0.0, 0.12], [0.0, 0.94, -0.27], [0.81, -0.47, -0.27], [-0.81, -0.47, -0.27]]),
    "methanol": ("COHHHH", [[0, 0.66, 0], [0, -0.76, 0], [-1.09, 0.97, 0], [0.88, -1.05, 0], [0.44, 1.08, 0.89], [0.44, 1.08, -0.89]]),
    "methane": ("CHHHH", [[0.0, 0.0, 0.0], [0.63, 0.63, 0.63], [-0.63, -0.63, 0.63], [0.63, -0.63, -0.63], [-0.63, 0.63, -0.63]]),
}
Frame = dict[str, Any]


def shaken_molecules(count: int, references: bool = True) -> list[list[Frame]]:
    """Frames of so many batches: `numbers`, `positions`, `energy` (with those of the free atoms, or without) and `forces`."""
    gen = np.random.default_rng(1)
    return [[_frame(*molecule, gen, references) for molecule in MOLECULES.values()] for _ in range(count)]


def _frame(symbols: str, positions: list[list[float]], gen: np.random.Generator, references: bool) -> Frame:
    numbers = np.array([NUMBERS[symbol] for symbol in symbols])
    energy = float(sum(REFERENCES[number] for number in numbers)) if references else 0.0
    shape = (len(numbers), 3)
    return {
        "numbers": numbers,
        "positions": np.array(positions) + gen.normal(scale=0.03, size=shape),
        "energy": energy - 4.0 + gen.normal(),
        "forces": gen.normal(size=shape),
    }
