"""HDF5 files: every group that holds numbers and positions is a set of frames. h5py is needed only here, and imported on use."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import DataError
from .arrays import records_of_arrays, with_names
from .record import Record


def records_of_hdf5(path: Path, keys: Mapping[str, str]) -> Iterator[Record]:
    """Structures of a file, group by group in the order of names; a group's path is the name of its molecule.

    Raises:
        DataError: If h5py is not installed, the file is not HDF5, or no group holds numbers and positions.
    """
    try:
        import h5py
    except ImportError as error:
        hint = "pip install h5py, or all readers: pip install 'purestep[atoms]', in a clone pip install -e '.[atoms]'"
        raise DataError(f"{path}: h5py reads such files, and it is not installed; {hint}") from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: cannot be read as HDF5: {error}") from error
    with file:
        found = False
        for group in _groups(file):
            held = {name for name, item in group.items() if isinstance(item, h5py.Dataset)}
            names = with_names(dict.fromkeys(held), keys)
            if {names.get("numbers"), names.get("positions")} <= held:
                found = True
                arrays = {name: group[name][()] for name in held}
                name = group.name.strip("/")
                yield from records_of_arrays(f"{path}:{group.name}", arrays, keys, name or None)
        if not found:
            raise DataError(
                f"{path}: no group holds numbers and positions under a known name; say which: keys={{'numbers': ..., 'positions': ...}}"
            )


def _groups(group: Any) -> Iterator[Any]:
    yield group
    for name in sorted(group):
        if hasattr(group[name], "keys"):
            yield from _groups(group[name])
