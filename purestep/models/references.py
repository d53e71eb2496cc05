"""Energies of free atoms, as a table that a potential adds to what it learned."""

from collections.abc import Mapping

import torch
from torch import Tensor


def reference_energy_table(reference_energies: Mapping[int, float] | None, max_number: int) -> Tensor | None:
    """Energies by atomic number, `(max_number + 1,)`, float64, eV; 0 where none is given, None where none is wanted.

    float64 because totals reach thousands of eV while their differences matter to a millionth.

    Raises:
        ValueError: If an atomic number is out of range.
    """
    if reference_energies is None:
        return None
    if outside := sorted(number for number in reference_energies if not 1 <= number <= max_number):
        raise ValueError(f"reference_energies has the atomic numbers {outside}, but max_number is {max_number}")
    table = torch.zeros(max_number + 1, dtype=torch.float64)
    for number, value in reference_energies.items():
        table[number] = value
    return table
