"""Reference energies of the elements: the part of a total energy that composition alone explains."""

from collections.abc import Mapping

import numpy as np

from ..errors import DataError


def fit_reference_energies(ptr: np.ndarray, numbers: np.ndarray, energy: np.ndarray, chosen: np.ndarray | None = None) -> dict[int, float]:
    """Least-squares energy of each element, in float64: minimises `|sum over atoms of e[number] - energy|^2` over frames.

    Frames without an energy (NaN) are left out. Where compositions do not determine the energies one by one, the solution of least
    norm is taken.

    Args:
        ptr: First atom of each frame and the end, `(F + 1,)`.
        numbers: Atomic numbers, `(N,)`.
        energy: Total energies, `(F,)`, eV.
        chosen: Frames to fit, `(F,)`, bool: the training part. None takes all.

    Returns:
        eV by atomic number, for the elements of the chosen frames.

    Raises:
        DataError: If no chosen frame has an energy.
    """
    used = np.isfinite(energy) if chosen is None else chosen & np.isfinite(energy)
    if not used.any():
        raise DataError("no frame of the training part has an energy, so there are no reference energies to fit")
    counts = composition(ptr, numbers)[used]
    present = np.flatnonzero(counts.any(axis=0))
    solution, *_ = np.linalg.lstsq(counts[:, present].astype(np.float64), energy[used].astype(np.float64), rcond=None)
    return {int(number): float(value) for number, value in zip(present, solution, strict=True)}


def composition(ptr: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Atoms of each element in each frame, `(F, largest number + 1)`."""
    frame = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    counts = np.zeros((len(ptr) - 1, int(numbers.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(counts, (frame, numbers), 1)
    return counts


def sum_of_references(numbers: np.ndarray, reference_energies: Mapping[int, float]) -> float:
    """Sum of the reference energies of some atoms, eV.

    Raises:
        DataError: If an element has none.
    """
    if missing := sorted(set(numbers.tolist()) - set(reference_energies)):
        raise DataError(f"no reference energy for the elements {missing}; known: {sorted(reference_energies)}")
    return float(np.sum([reference_energies[number] for number in numbers.tolist()]))
