"""Which reader a source needs: by the suffix of a path, or by what an object can do."""

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..store import AtomicStore
from .arrays import records_of_arrays
from .atoms_files import is_atoms, records_of_atoms_file, values_of_atoms
from .hdf5 import records_of_hdf5
from .record import Record

_ATOMS_FILES = (".extxyz", ".xyz", ".db", ".traj", ".json", ".cif", ".vasp", ".xml")


def records(source: Any, keys: Mapping[str, str] | None = None) -> Iterator[Record]:
    """All structures of a source, in order.

    Args:
        source: A path, by its suffix: extended XYZ, ASE database or trajectory (through ASE), `.npz`, `.h5`/`.hdf5`, `.zarr`; a list of
            paths; a list or other iterable of dicts or of ASE's `Atoms`; a data set of Hugging Face `datasets`, whose rows are dicts.
        keys: Names in the source by ours; readers of arrays need them to know the numbers and positions.

    Raises:
        DataError: If there is no such file, or nothing can read it.
    """
    keys = keys or {}
    if isinstance(source, str | os.PathLike):
        return _records_of_path(Path(source), keys)
    if isinstance(source, Mapping):
        return records_of_arrays("arrays", {key: np.asarray(value) for key, value in source.items()}, keys)
    if isinstance(source, AtomicStore):
        return _records_of_objects(_values_of_store(source), str(source.path), keys)
    if isinstance(source, Iterable):
        return _records_of_objects(source, f"{type(source).__name__}", keys)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _records_of_objects((source[number] for number in range(len(source))), f"{type(source).__name__}", keys)
    raise DataError(f"cannot read structures from a {type(source).__name__}; give a path, an iterable of dicts, or a list of Atoms")


def _records_of_path(path: Path, keys: Mapping[str, str]) -> Iterator[Record]:
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    suffix = next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() not in (".gz", ".bz2", ".xz")), "")
    if path.is_dir():
        return records(AtomicStore(path), keys)
    if suffix == ".npz":
        return records_of_arrays(str(path), _npz(path), keys)
    if suffix in (".h5", ".hdf5", ".hdf"):
        return records_of_hdf5(path, keys)
    if suffix in _ATOMS_FILES:
        return records_of_atoms_file(path)
    raise DataError(f"{path}: no reader for {suffix!r}; known: .npz, .h5, .hdf5, .zarr, {', '.join(_ATOMS_FILES)}")


def _values_of_store(store: AtomicStore) -> Iterator[dict[str, Any]]:
    """Frames of a store: without the labels that are not known, with the names of groups and parts."""
    names = store.attributes.get("group_names")
    for number in range(len(store)):
        frame: dict[str, Any] = store[number]
        frame = {key: value for key, value in frame.items() if value.dtype.kind != "f" or not value.size or not np.isnan(value).all()}
        if names and "group" in frame:
            frame["group"] = names[int(frame["group"])]
        yield frame


def _npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as npz: {error}") from error


def _records_of_objects(objects: Iterable[Any], name: str, keys: Mapping[str, str]) -> Iterator[Record]:
    for number, found in enumerate(objects):
        if isinstance(found, str | os.PathLike):
            yield from _records_of_path(Path(found), keys)
        elif isinstance(found, Mapping):
            yield Record(name, number, found)
        elif is_atoms(found):
            yield Record(name, number, values_of_atoms(found))
        else:
            raise DataError(f"item {number} of the {name} is a {type(found).__name__}; expected a dict, ASE Atoms or a path")
