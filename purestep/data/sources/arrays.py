"""Structures in arrays of many frames, as npz and HDF5 files hold them: flat with offsets, one molecule's conformers, or padded."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import DataError
from ..elements import atomic_numbers
from .record import Record

# Names in well-known files: rMD17 (nuclear_charges, coords), sGDML (z, R, E, F), ANI-1 and ANI-1x (species, atomic_numbers,
# coordinates), SPICE (conformations), QM7-X (atNUM, atXYZ). Labels with a method in their name are for `keys`.
ALIASES = {
    "numbers": ("numbers", "atomic_numbers", "nuclear_charges", "species", "z", "Z", "charges", "atNUM"),
    "positions": ("positions", "coordinates", "coords", "conformations", "R", "pos", "atXYZ"),
    "energy": ("energy", "energies", "E"),
    "forces": ("forces", "F"),
}


def with_names(arrays: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, str]:
    """Names in the source of the numbers, positions and labels, by ours."""
    found = {ours: next((name for name in names if name in arrays), "") for ours, names in ALIASES.items()}
    return {**{ours: name for ours, name in found.items() if name}, **keys}


def records_of_arrays(source: str, arrays: Mapping[str, np.ndarray], keys: Mapping[str, str], group: str | None = None) -> Iterator[Record]:
    """Structures of a set of arrays, whose layout follows from their shapes.

    Args:
        source: What to call them.
        arrays: With `ptr`: flat, row by row, and the edges of frames with `edge_ptr` and `edge_index` `(E, 2)`. Numbers `(N,)` and
            positions `(F, N, 3)`: conformers of one molecule. Numbers `(F, Nmax)` and positions `(F, Nmax, 3)`: padded with number 0.
            Numbers `(N,)` and positions `(N, 3)`: one frame.
        keys: Names in the arrays by ours, where they are not well known.
        group: Name of the molecule, if the source has one.

    Raises:
        DataError: If there are no numbers and positions, or their shapes make no known layout.
    """
    names = with_names(arrays, keys)
    if missing := [key for key in ("numbers", "positions") if names.get(key, "") not in arrays]:
        raise DataError(
            f"{source}: no array for {' and '.join(missing)}; it holds {', '.join(sorted(arrays))}; say which: "
            f"keys={{{missing[0]!r}: '...'}}"
        )
    species, positions = arrays[names["numbers"]], arrays[names["positions"]]
    numbers = atomic_numbers(species)
    # labels that `keys` names keep their name, by which they are looked for later
    ours_by_theirs = {theirs: ours for ours, theirs in names.items() if ours not in keys or ours in ("numbers", "positions")}
    named: dict[str, Any] = {ours_by_theirs.get(name, name): array for name, array in arrays.items()} | {"numbers": numbers}
    if group is not None:
        named.setdefault(keys.get("group", "group"), group)
    per_atom = {"positions", "forces", "gradient", keys.get("forces"), keys.get("gradient")}
    if "ptr" in arrays:
        return _flat(source, named, arrays["ptr"], per_atom, {keys.get(key, key): key for key in ("edge_index", "edge_shift")})
    if positions.ndim == 2 and numbers.ndim == 1:
        return iter([Record(source, 0, named)])
    if positions.ndim == 3 and numbers.ndim in (1, 2):
        return _stacked(source, named, arrays.get("num_atoms"), per_atom)
    raise DataError(f"{source}: numbers {numbers.shape} and positions {positions.shape} make no known layout")


def _flat(
    source: str, named: Mapping[str, Any], ptr: np.ndarray, per_atom: Collection[str | None], per_edge: Mapping[str, str]
) -> Iterator[Record]:
    """Rows of all frames under each other; arrays of neither length are about the whole file."""
    num_atoms, num_frames = int(ptr[-1]), len(ptr) - 1
    group_names, edge_ptr = named.get("group_names"), named.get("edge_ptr", np.zeros(num_frames + 1, dtype=np.int64))
    by_edge = {key: array for key, array in named.items() if "edge_ptr" in named and _has_row_per_edge(key, array, ptr, edge_ptr, per_edge)}
    for index in range(num_frames):
        first, end = int(ptr[index]), int(ptr[index + 1])
        values = {}
        for key, array in named.items():
            if key not in ("ptr", "edge_ptr", "group_names", *by_edge) and np.ndim(array) and len(array) in (num_atoms, num_frames):
                by_atom = len(array) == num_atoms and (num_atoms != num_frames or key == "numbers" or key in per_atom)
                values[key] = array[first:end] if by_atom else array[index]
        for key, array in by_edge.items():
            rows = array[int(edge_ptr[index]) : int(edge_ptr[index + 1])]
            values[key] = rows.T if per_edge.get(key) == "edge_index" else rows
        if group_names is not None and "group" in values:
            values["group"] = str(group_names[int(values["group"])])
        yield Record(source, index, values)


def _stacked(source: str, named: Mapping[str, Any], num_atoms: np.ndarray | None, per_atom: Collection[str | None]) -> Iterator[Record]:
    """One frame a row; numbers are common to all frames, or padded with zeros."""
    numbers, num_frames = named["numbers"], len(named["positions"])
    padded = numbers.ndim == 2
    for index in range(num_frames):
        own = numbers[index] if padded else numbers
        count = len(own) if not padded else int(np.count_nonzero(own) if num_atoms is None else num_atoms[index])
        values: dict[str, Any] = {"numbers": own[:count]}
        for key, array in named.items():
            if key != "numbers" and np.ndim(array) and len(array) == num_frames:
                values[key] = array[index][:count] if padded and (key in per_atom or _has_row_per_atom(array, own)) else array[index]
            elif key != "numbers" and np.ndim(array) == 0:
                values[key] = array
        yield Record(source, index, values)


def _has_row_per_edge(key: str, array: Any, ptr: np.ndarray, edge_ptr: np.ndarray, known: Collection[str]) -> bool:
    # what has as many rows as there are atoms or frames belongs to those, unless its name says otherwise
    return key in known or (np.ndim(array) > 0 and len(array) == edge_ptr[-1] and len(array) not in (ptr[-1], len(ptr) - 1))


def _has_row_per_atom(array: np.ndarray, own: np.ndarray) -> bool:
    # three columns may be three atoms or a vector; then only known names are cut
    return array.ndim > 1 and array.shape[1] == len(own) != 3
