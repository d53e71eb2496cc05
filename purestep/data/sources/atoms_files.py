"""Files that ASE reads: extended XYZ, databases, trajectories and others. ASE is needed only here, and imported on use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .record import Record


def records_of_atoms_file(path: Path) -> Iterator[Record]:
    """Structures of a file, one at a time.

    Raises:
        DataError: If ASE is not installed.
    """
    try:
        import ase.db
        import ase.io
    except ImportError as error:
        hint = "pip install ase, or all readers: pip install 'purestep[atoms]', in a clone pip install -e '.[atoms]'"
        raise DataError(f"{path}: ASE reads such files, and it is not installed; {hint}") from error
    found: Iterator[Any]
    if path.suffix.lower() in (".db", ".json"):
        # `ase.io` leaves out what users have stored with a row
        found = (row.toatoms(add_additional_information=True) for row in ase.db.connect(path).select())
    else:
        found = iter(ase.io.iread(str(path), index=":"))
    number = 0
    while True:
        try:
            atoms = next(found, None)
            values = None if atoms is None else values_of_atoms(atoms)
        except Exception as error:  # parsers of many formats, each with errors of its own
            yield Record(str(path), number, {}, f"cannot be read, nor what follows: {error}")
            return
        if values is None:
            return
        yield Record(str(path), number, values)
        number += 1


def is_atoms(found: Any) -> bool:
    """Whether an object is like ASE's `Atoms`."""
    return all(hasattr(found, name) for name in ("arrays", "info", "cell", "pbc"))


def values_of_atoms(atoms: Any) -> dict[str, Any]:
    """What an `Atoms` object carries by name: arrays, info, results of its calculator; cell and pbc unless both are empty.

    Stress is in ASE's convention: eV/Angstrom^3, tension positive, Voigt order xx, yy, zz, yz, xz, xy. Forces are without constraints.
    """
    results = {} if atoms.calc is None else dict(atoms.calc.results)
    stored = [atoms.info.get(name) for name in ("data", "key_value_pairs")]  # what users have stored with a row of a database
    values = {key: value for some in stored if isinstance(some, dict) for key, value in some.items()}
    values |= {**atoms.info, **atoms.arrays, **results}
    cell, pbc = np.array(atoms.cell), np.array(atoms.pbc)
    if cell.any() or pbc.any():
        values |= {"cell": cell, "pbc": pbc}
    return values
