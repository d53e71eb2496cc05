"""Other formats to stores: flat npz files and lists of frames."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from .store import LEVELS, AtomicStore, write_store

VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # where xx, xy, ... stand in ASE's order xx, yy, zz, yz, xz, xy


def store_from_npz(source: str | os.PathLike, path: str | os.PathLike, *, metadata: Mapping[str, Any] | None = None) -> AtomicStore:
    """Make a store of an npz file whose arrays are flat: `ptr`, `numbers`, `positions`, and labels by their names in a store.

    A `stress` of six columns is taken in ASE's Voigt order (xx, yy, zz, yz, xz, xy), eV/Angstrom^3, tension positive. With a `cell`
    and no `pbc` all directions are periodic. Reference energies are fitted anew; arrays that a store has no name for are left out,
    `group_names` goes to the attributes.

    Raises:
        DataError: If arrays are missing or contradict each other.
    """
    with np.load(source, allow_pickle=False) as file:
        given = {key: file[key] for key in file.files}
    arrays = {key: value for key, value in given.items() if key == "ptr" or key in LEVELS}
    if "stress" in arrays and arrays["stress"].shape[1:] == (6,):
        arrays["stress"] = arrays["stress"][:, np.array(VOIGT)]
    if "cell" in arrays and "pbc" not in arrays:
        arrays["pbc"] = np.ones((len(arrays["cell"]), 3), dtype=bool)
    names = {"group_names": given["group_names"].tolist()} if "group_names" in given else {}
    return write_store(path, arrays, metadata={**names, **(metadata or {})})


def arrays_from_frames(frames: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Flat arrays, as `write_store` takes them, from frames with the same keys.

    Raises:
        DataError: If there is no frame, or frames differ in their keys.
    """
    frames = list(frames)
    if not frames:
        raise DataError("there are no frames to write")
    for number, frame in enumerate(frames):
        if frame.keys() != frames[0].keys():
            raise DataError(f"frame {number} has the keys {sorted(frame)}, frame 0 has {sorted(frames[0])}; fill missing labels with NaN")
    counts = [len(frame["numbers"]) for frame in frames]
    arrays = {"ptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)}
    for key in frames[0]:
        join = np.concatenate if LEVELS.get(key) == "atom" else np.stack
        arrays[key] = join([np.asarray(frame[key]) for frame in frames])
    return arrays
