"""Stores of atomic frames: zarr v3 groups of flat arrays, opened lazily, read frame by frame.

A store is one group, or several that were committed one after the other; the attributes of the outermost say which count. How they
are written is in `writing.py`, how other formats become stores in `conversion.py`.
"""

import hashlib
import importlib.resources
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .layout import FORMAT, SPLITS, fingerprint, joined_fingerprint, missing_values, pointers_of, rows_of
from .segment import Segment

VERSION = 3
_SHIPPED = {"g2": "g2_xtb.zarr"}


def not_a_store(file: str | os.PathLike) -> str:
    """What to say of a file in the place of a store, and what to do."""
    store = Path(file).with_suffix(".zarr")
    return f"{file} is a file, not the directory of a store; make one of it: purestep data convert {file} {store}"


class AtomicStore:
    """Frames of a store, as mappings of arrays; read on demand.

    The frames are those that were committed when the store was opened; what is appended later is seen by opening it again.

    Args:
        path: Directory of the store.

    Raises:
        DataError: If there is no store, or one that this version cannot read.
    """

    def __init__(self, path: str | os.PathLike):
        import zarr  # takes a third of a second, which those who read no store should not wait for

        self.path = Path(path)
        try:
            group: Any = zarr.open_group(self.path, mode="r", zarr_format=3)
        except FileNotFoundError as error:
            if self.path.is_file():
                raise DataError(not_a_store(self.path)) from error
            raise DataError(f"{self.path}: there is no zarr v3 group; give the directory of a store") from error
        self.attributes: dict[str, Any] = dict(group.attrs)
        if self.attributes.get("format") != FORMAT:
            raise DataError(f"{self.path}: a zarr group, but not a store of {FORMAT!r}; write it with write_store")
        if self.attributes["version"] > VERSION:
            raise DataError(
                f"{self.path}: store version {self.attributes['version']}, this purestep reads up to {VERSION}; update purestep"
            )
        self.levels: dict[str, str] = self.attributes["levels"]
        parts = self.attributes.get("segments", [{"path": "", "levels": self.levels}])
        self._segments = [Segment(group[part["path"]] if part["path"] else group, part["levels"]) for part in parts]
        self._starts = np.cumsum([0, *map(len, self._segments)])
        self.pointers = {level: _joined([part.pointers[level] for part in self._segments]) for level in pointers_of(self.levels)}
        self.ptr = self.pointers["atom"]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Frame `index`: arrays by key, one row per atom or edge, or the frame's own row. They are views and cannot be written."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} of a store with {len(self)} frames")
        index %= len(self)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1 if len(self._segments) > 1 else 0
        part = self._segments[number]
        frame = part.frame(index - int(self._starts[number]))
        return (
            frame
            if len(frame) == len(self.levels)
            else {key: frame[key] if key in frame else self._absent(key, frame) for key in self.levels}
        )

    def column(self, key: str) -> np.ndarray:
        """One whole array of the store, rows of all frames under each other; `edge_index` has a row an edge, `(E, 2)`."""
        if key not in self.levels:
            raise DataError(f"{self.path}: no array {key!r}; there are {', '.join(sorted(self.levels))}")
        parts = [
            part.arrays[key][:] if key in part.levels else self.missing(key, *self._extent(part)[self.levels[key]])
            for part in self._segments
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, name: str) -> "Subset":
        """The frames of one part: "train", "validation" or "test"."""
        if name not in SPLITS:
            raise DataError(f"unknown split {name!r}; there are {', '.join(SPLITS)}")
        return Subset(self, np.flatnonzero(self.column("split") == SPLITS.index(name)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, as written."""
        return self.attributes["fingerprint"]

    @property
    def reference_energies(self) -> dict[int, float]:
        """Energies of the elements by atomic number, eV: fitted to the training part, or given when the store was made.

        Raises:
            DataError: If the store has none.
        """
        if "reference_energies" not in self.attributes:
            told = "it was made without, or of frames without energies; in Python fit_reference_energies finds some"
            raise DataError(f"{self.path}: has no reference energies: {told}")
        return {int(number): value for number, value in self.attributes["reference_energies"].items()}

    def like(self, key: str) -> Any:
        """A stored array of this name, for the shape of its rows and its dtype."""
        return next(part.arrays[key] for part in self._segments if key in part.levels)

    def missing(self, key: str, *rows: int) -> np.ndarray:
        """What stands for a number of rows that were not given.

        Raises:
            DataError: If nothing can.
        """
        like = self.like(key)
        return missing_values(key, (*rows, *like.shape[1:]), like.dtype)

    def verify(self) -> None:
        """Read everything and compare with the fingerprint.

        Raises:
            DataError: If the content has changed since it was written.
        """
        found = joined_fingerprint(
            fingerprint(
                {
                    **{pointers_of(part.levels)[level]: ptr for level, ptr in part.pointers.items()},
                    **{key: array[:] for key, array in part.arrays.items()},
                }
            )
            for part in self._segments
        )
        if found != self.fingerprint:
            raise DataError(f"{self.path}: content has the fingerprint {found}, the attributes say {self.fingerprint}; restore the store")

    def __repr__(self) -> str:
        counts = ", ".join([f"{len(self)} frames", *(f"{int(ptr[-1])} {level}s" for level, ptr in self.pointers.items())])
        return f"AtomicStore({str(self.path)!r}: {counts}; {', '.join(sorted(self.levels))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return AtomicStore, (self.path,)  # a worker opens its own

    def _absent(self, key: str, frame: dict[str, np.ndarray]) -> np.ndarray:
        return self.missing(key, *rows_of(frame, self.levels[key]))

    @staticmethod
    def _extent(part: Segment) -> dict[str, tuple[int]]:
        return {"frame": (len(part),), **{level: (int(ptr[-1]),) for level, ptr in part.pointers.items()}}


def _joined(pointers: list[np.ndarray]) -> np.ndarray:
    """Where the rows of each frame begin, of all parts."""
    offsets = np.cumsum([0, *(int(ptr[-1]) for ptr in pointers)])
    return np.concatenate([[0], *(ptr[1:] + at for ptr, at in zip(pointers, offsets, strict=False))])


class Subset:
    """Some frames of a store, in a given order.

    Args:
        store: The frames to choose from.
        indices: Which, `(size,)`.
    """

    def __init__(self, store: AtomicStore, indices: np.ndarray):
        self.store, self.indices = store, np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def levels(self) -> dict[str, str]:
        """Those of the store."""
        return self.store.levels

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.store[int(self.indices[index])]

    @property
    def fingerprint(self) -> str:
        """Hash of the store's fingerprint and the choice."""
        return hashlib.sha256(self.store.fingerprint.encode() + self.indices.astype("<i8").tobytes()).hexdigest()


def shipped(name: str) -> AtomicStore:
    """A store that comes with the package.

    Args:
        name: "g2": 109 small molecules of H, C, N, O, F, Si, P, S and Cl in 2,135 rattled frames, energies and forces from GFN2-xTB,
            split by molecule.
    """
    if name not in _SHIPPED:
        raise DataError(f"no shipped store {name!r}; there is {', '.join(_SHIPPED)}")
    return AtomicStore(Path(str(importlib.resources.files(__package__) / _SHIPPED[name])))
