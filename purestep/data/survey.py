"""What a look over a whole data set finds odd: equal frames, and frames far from the others."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from .references import fit_reference_energies, sum_of_references
from .splitting import content_hash

_FAR = 10.0
"""Distances from the median, in units of the scaled median distance, beyond which a value is reported; a Gaussian never gets there."""
_SMALL_FORCE = 1e-2  # eV/Angstrom


class Suspicion(NamedTuple):
    """Something that may be an error; frames are numbers in the store, in order."""

    frame: int
    reason: str


@dataclasses.dataclass
class Survey:
    """Collects a few numbers of each frame; `findings` then judges."""

    numbers: list[np.ndarray] = dataclasses.field(default_factory=list)
    energy: list[float] = dataclasses.field(default_factory=list)
    largest_force: list[float] = dataclasses.field(default_factory=list)
    hashes: list[str] = dataclasses.field(default_factory=list)

    def look(self, frame: Mapping[str, Any]) -> None:
        """Take note of one frame."""
        self.numbers.append(np.asarray(frame["numbers"]))
        self.energy.append(float(frame.get("energy", np.nan)))
        forces = np.asarray(frame.get("forces", np.full((1, 3), np.nan)))
        self.largest_force.append(float(np.linalg.norm(forces, axis=1).max()))
        self.hashes.append(content_hash(frame))

    def duplicates(self) -> list[tuple[int, int]]:
        """Frames that equal an earlier one in structure, with that one."""
        first: dict[str, int] = {}
        return [(number, first[found]) for number, found in enumerate(self.hashes) if first.setdefault(found, number) != number]

    def suspicions(self) -> list[Suspicion]:
        """Frames far from the others in energy per atom above the references, or in their largest force."""
        energy = self.energies_per_atom()
        force = np.maximum(np.array(self.largest_force), _SMALL_FORCE)
        odd_energy = np.abs(_distances(energy, 1e-3)) > _FAR
        odd_force = _distances(np.log(force), 0.1) > _FAR  # small forces are no error, and a few large ones are usual
        return sorted(
            [Suspicion(int(n), f"energy per atom above the references is {energy[n]:.4g} eV") for n in np.flatnonzero(odd_energy)]
            + [Suspicion(int(n), f"largest force is {force[n]:.4g} eV/Angstrom") for n in np.flatnonzero(odd_force)]
        )

    def energies_per_atom(self) -> np.ndarray:
        """Energy per atom above a fit of the elements' energies, eV; NaN where unknown."""
        energy = np.array(self.energy)
        ptr = np.concatenate([[0], np.cumsum([len(numbers) for numbers in self.numbers])])
        try:
            references = fit_reference_energies(ptr, np.concatenate(self.numbers), energy)
        except DataError:  # no energies at all
            return np.full(len(energy), np.nan)
        sums = np.array([sum_of_references(n, references) if np.isfinite(e) else np.nan for n, e in zip(self.numbers, energy, strict=True)])
        return (energy - sums) / np.diff(ptr)


def _distances(values: np.ndarray, least_scale: float) -> np.ndarray:
    """Distances from the median over 1.4826 times their median size, which for a Gaussian is its standard deviation."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(len(values))
    centre = np.median(known)
    scale = max(1.4826 * float(np.median(np.abs(known - centre))), least_scale)
    return np.nan_to_num((values - centre) / scale)
