"""Units of other programs, and how they become eV, Angstrom, eV/Angstrom and eV/Angstrom^3 (tension positive)."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Literal

from ..errors import DataError

_AVOGADRO, _CHARGE = 6.02214076e23, 1.602176634e-19  # exact in the SI since 2019
ENERGIES = {
    "eV": 1.0,
    "meV": 1e-3,
    "Hartree": 27.211386245981,  # CODATA 2022, as is the Bohr radius below
    "Rydberg": 27.211386245981 / 2,
    "kcal/mol": 4184.0 / _AVOGADRO / _CHARGE,
    "kJ/mol": 1000.0 / _AVOGADRO / _CHARGE,
}
LENGTHS = {"Angstrom": 1.0, "Bohr": 0.529177210544, "nm": 10.0}
PRESSURES = {"GPa": 1e-21 / _CHARGE, "kbar": 1e-22 / _CHARGE, "bar": 1e-25 / _CHARGE, "eV/Angstrom^3": 1.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Units:
    """What the numbers of a source mean.

    Args:
        energy: One of eV, meV, Hartree, Rydberg, kcal/mol, kJ/mol.
        length: One of Angstrom, Bohr, nm.
        forces: `<energy>/<length>`; None: those of `energy` and `length`.
        stress: GPa, kbar, bar or `<energy>/<length>^3`; None: those of `energy` and `length`.
        stress_sign: "tension" if stress is positive under tension, as in ASE; "compression" if it is a pressure, as VASP prints it.

    Raises:
        DataError: If a unit is unknown.
    """

    energy: str = "eV"
    length: str = "Angstrom"
    forces: str | None = None
    stress: str | None = None
    stress_sign: Literal["tension", "compression"] = "tension"

    def __post_init__(self) -> None:
        if self.stress_sign not in ("tension", "compression"):
            raise DataError(f"stress_sign must be 'tension' or 'compression', got {self.stress_sign!r}")
        factors(self)

    def __str__(self) -> str:
        forces, stress = self.forces or f"{self.energy}/{self.length}", self.stress or f"{self.energy}/{self.length}^3"
        return f"energy {self.energy}, length {self.length}, forces {forces}, stress {stress} with {self.stress_sign} positive"


def factors(units: Units) -> Mapping[str, float]:
    """What to multiply the arrays of a source by, by key.

    Raises:
        DataError: If a unit is unknown.

    Example:
        >>> round(factors(Units(energy="Hartree", length="Bohr"))["forces"], 4)
        51.4221
    """
    energy, length = _look_up(units.energy, ENERGIES, "energy"), _look_up(units.length, LENGTHS, "length")
    forces = energy / length if units.forces is None else _ratio(units.forces, "", "forces")
    if units.stress is None:
        stress = energy / length**3
    else:
        stress = PRESSURES[units.stress] if units.stress in PRESSURES else _ratio(units.stress, "^3", "stress")
    sign = 1.0 if units.stress_sign == "tension" else -1.0
    return {
        **dict.fromkeys(("positions", "cell"), length),
        **dict.fromkeys(("energy", "virial"), energy),
        "forces": forces,
        "gradient": -forces,
        "stress": sign * stress,
    }


def _ratio(text: str, power: str, what: str) -> float:
    energy, slash, length = text.removesuffix(power).rpartition("/")
    if not slash or not text.endswith(power):
        also = f", {', '.join(PRESSURES)}" if power else ""
        raise DataError(f"unit of {what}: expected <energy>/<length>{power}{also}, got {text!r}")
    size = _look_up(length, LENGTHS, what)
    return _look_up(energy, ENERGIES, what) / (size**3 if power else size)


def _look_up(name: str, table: Mapping[str, float], what: str) -> float:
    if name not in table:
        near = difflib.get_close_matches(name, table, 1, 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"unit of {what}: unknown {name!r}{hint} (known: {', '.join(table)})")
    return table[name]
