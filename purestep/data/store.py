"""Stores of atomic frames: a zarr v3 group of flat arrays, opened lazily, read frame by frame.

Rows of all frames follow each other; `ptr` says where each frame's atoms begin. An array has one row per frame or one per atom, as
the attributes say. Units are eV, Angstrom, eV/Angstrom, eV/Angstrom^3 (tension positive), and energies are total energies. How other
formats become stores is in `convert.py`.
"""

import functools
import hashlib
import importlib.resources
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .references import fit_reference_energies

FORMAT = "purestep atomic frames"
VERSION = 1
SPLITS = ("train", "validation", "test")
LEVELS = {
    **dict.fromkeys(("numbers", "positions", "forces"), "atom"),
    **dict.fromkeys(("energy", "cell", "pbc", "stress", "group", "split"), "frame"),
}
UNITS = {"positions": "Angstrom", "cell": "Angstrom", "energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"}
ROWS = {"positions": (3,), "forces": (3,), "cell": (3, 3), "pbc": (3,), "stress": (3, 3)}

_CHUNK_ROWS = 1 << 16
_KEPT_CHUNKS = 64
_SHIPPED = {"g2": "g2_xtb.zarr"}


class AtomicStore:
    """Frames of a store, as mappings of arrays; read on demand.

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
            raise DataError(f"{self.path}: there is no zarr v3 group; give the directory of a store") from error
        self.attributes: dict[str, Any] = dict(group.attrs)
        if self.attributes.get("format") != FORMAT:
            raise DataError(f"{self.path}: a zarr group, but not a store of {FORMAT!r}; write it with write_store")
        if self.attributes["version"] > VERSION:
            raise DataError(
                f"{self.path}: store version {self.attributes['version']}, this purestep reads up to {VERSION}; update purestep"
            )
        self.levels: dict[str, str] = self.attributes["levels"]
        self._arrays: dict[str, Any] = {key: group[key] for key in self.levels}
        self._chunks = {key: functools.lru_cache(_KEPT_CHUNKS)(functools.partial(_chunk, array)) for key, array in self._arrays.items()}
        self.ptr: np.ndarray = group["ptr"][:]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Frame `index`: arrays by key, one row per atom, or the frame's own row."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} of a store with {len(self)} frames")
        index %= len(self)
        first, end = int(self.ptr[index]), int(self.ptr[index + 1])
        return {
            key: self._slice(key, first, end) if level == "atom" else self._slice(key, index, index + 1)[0]
            for key, level in self.levels.items()
        }

    def column(self, key: str) -> np.ndarray:
        """One whole array of the store."""
        if key not in self.levels:
            raise DataError(f"{self.path}: no array {key!r}; there are {', '.join(sorted(self.levels))}")
        return self._arrays[key][:]

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
        """Energies of the elements by atomic number, eV, fitted to the training part."""
        return {int(number): value for number, value in self.attributes["reference_energies"].items()}

    def verify(self) -> None:
        """Read everything and compare with the fingerprint.

        Raises:
            DataError: If the content has changed since it was written.
        """
        found = fingerprint({"ptr": self.ptr, **{key: self.column(key) for key in self.levels}})
        if found != self.fingerprint:
            raise DataError(f"{self.path}: content has the fingerprint {found}, the attributes say {self.fingerprint}; restore the store")

    def __repr__(self) -> str:
        counts = f"{len(self)} frames, {int(self.ptr[-1])} atoms"
        return f"AtomicStore({str(self.path)!r}: {counts}; {', '.join(sorted(self.levels))})"

    def _slice(self, key: str, first: int, end: int) -> np.ndarray:
        number, last = first // _CHUNK_ROWS, max(end - 1, first) // _CHUNK_ROWS
        if number == last:
            start = number * _CHUNK_ROWS
            return self._chunks[key](number)[first - start : end - start]
        parts = [self._slice(key, max(first, n * _CHUNK_ROWS), min(end, (n + 1) * _CHUNK_ROWS)) for n in range(number, last + 1)]
        return np.concatenate(parts)


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


def write_store(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    *,
    levels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> AtomicStore:
    """Write a new store; it appears whole or not at all.

    Args:
        path: Directory to make; must not exist.
        arrays: `ptr` `(F + 1,)`, `numbers` `(N,)`, `positions` `(N, 3)`, and what there is of `energy` `(F,)`, `forces` `(N, 3)`,
            `cell` `(F, 3, 3)`, `pbc` `(F, 3)`, `stress` `(F, 3, 3)`, `group` `(F,)`, `split` `(F,)` (0 train, 1 validation, 2 test).
            Other arrays are kept as they are. Missing labels are NaN.
        levels: "atom" or "frame" for other arrays.
        metadata: More attributes, JSON values.

    Raises:
        DataError: If arrays contradict each other, or the path exists.
    """
    import zarr  # see AtomicStore
    from zarr.codecs import BloscCodec

    path = Path(path)
    if path.exists():
        raise DataError(f"{path}: already exists; stores are never overwritten")
    levels = {**{key: level for key, level in LEVELS.items() if key in arrays}, **(levels or {})}
    check_arrays(arrays, levels)
    attributes = {**(metadata or {}), **_attributes(arrays, levels)}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        group = zarr.create_group(temporary, zarr_format=3, attributes=attributes)
        for key in ("ptr", *levels):
            data = np.ascontiguousarray(arrays[key])
            chunks = (max(1, min(len(data), _CHUNK_ROWS if key != "ptr" else len(data))), *data.shape[1:])
            codec = BloscCodec(cname="zstd", clevel=9, shuffle="shuffle", typesize=data.dtype.itemsize)
            group.create_array(key, data=data, chunks=chunks, compressors=codec)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return AtomicStore(path)


def check_arrays(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> None:
    """Check that arrays make up frames.

    Raises:
        DataError: With the array, what was wrong and what was expected.
    """
    if missing := [key for key in ("ptr", "numbers", "positions") if key not in arrays]:
        raise DataError(f"a store needs the arrays {', '.join(missing)}; given: {', '.join(sorted(arrays))}")
    if unknown := sorted(arrays.keys() - levels.keys() - {"ptr"}):
        raise DataError(f"say whether the arrays {', '.join(unknown)} have rows per atom or per frame: levels={{{unknown[0]!r}: 'frame'}}")
    ptr = arrays["ptr"]
    if ptr.ndim != 1 or len(ptr) < 2 or ptr[0] != 0 or (np.diff(ptr) < 1).any():
        raise DataError("ptr must start at 0 and ascend, one atom or more in each frame")
    sizes = {"atom": int(ptr[-1]), "frame": len(ptr) - 1}
    for key, level in levels.items():
        if level not in sizes:
            raise DataError(f"{key}: level must be 'atom' or 'frame', got {level!r}")
        expected = (sizes[level], *ROWS.get(key, () if key in LEVELS else arrays[key].shape[1:]))
        if arrays[key].shape != expected:
            raise DataError(f"{key}: shape {arrays[key].shape}, expected {expected} for {sizes['frame']} frames and {sizes['atom']} atoms")
    if not np.isfinite(arrays["positions"]).all():
        frames = np.searchsorted(ptr, np.flatnonzero(~np.isfinite(arrays["positions"]).all(axis=1)), side="right") - 1
        raise DataError(f"positions: not finite in the frames {sorted(set(frames.tolist()))[:10]}")


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, dtypes, shapes and values, in the order of names; the same on machines of any byte order."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        data = np.ascontiguousarray(arrays[key]).astype(arrays[key].dtype.newbyteorder("<"), copy=False)
        digest.update(f"{key} {data.dtype.str} {data.shape}\n".encode())
        digest.update(data.tobytes())
    return digest.hexdigest()


def _attributes(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "num_frames": len(arrays["ptr"]) - 1,
        "num_atoms": int(arrays["ptr"][-1]),
        "levels": dict(levels),
        "units": {key: unit for key, unit in UNITS.items() if key in levels},
        "elements": [int(number) for number in np.unique(arrays["numbers"])],
        "fingerprint": fingerprint({key: arrays[key] for key in ("ptr", *levels)}),
    }
    if "energy" in levels:
        training = arrays["split"] == 0 if "split" in levels else None
        references = fit_reference_energies(arrays["ptr"], arrays["numbers"], arrays["energy"], training)
        attributes["reference_energies"] = {str(number): value for number, value in references.items()}
    return attributes


def _chunk(array: Any, number: int) -> np.ndarray:
    return array[number * _CHUNK_ROWS : (number + 1) * _CHUNK_ROWS]
