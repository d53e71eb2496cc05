"""What the arrays of a store are called, what they mean and how they are checked; also their fingerprint and their summary.

Units are eV, Angstrom, eV/Angstrom, eV/Angstrom^3 (tension positive), and energies are total energies.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError

FORMAT = "purestep atomic frames"
SPLITS = ("train", "validation", "test")
LEVELS = {
    **dict.fromkeys(("numbers", "positions", "forces"), "atom"),
    **dict.fromkeys(("energy", "cell", "pbc", "stress", "group", "split"), "frame"),
}
UNITS = {"positions": "Angstrom", "cell": "Angstrom", "energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"}
ROWS = {"positions": (3,), "forces": (3,), "cell": (3, 3), "pbc": (3,), "stress": (3, 3)}


def levels_of(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Levels of the known arrays among the given ones, and those that the caller states."""
    return {**{key: level for key, level in LEVELS.items() if key in arrays}, **(levels or {})}


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


def joined_fingerprint(parts: Iterable[str]) -> str:
    """Fingerprint of a store of several parts; one part alone has its own."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else hashlib.sha256("\n".join(parts).encode()).hexdigest()


def summary(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> dict[str, Any]:
    """Counts of one part of a store, as JSON values: frames, atoms, elements, labelled frames by key, sums of the energies."""
    ptr = arrays["ptr"]
    out: dict[str, Any] = {
        "num_frames": len(ptr) - 1,
        "num_atoms": int(ptr[-1]),
        "levels": dict(levels),
        "elements": [int(number) for number in np.unique(arrays["numbers"])],
        "labelled_frames": {key: int(labelled(ptr, arrays[key], level).sum()) for key, level in levels.items()},
        "fingerprint": fingerprint({key: arrays[key] for key in ("ptr", *levels)}),
    }
    if "energy" in levels:
        per_atom = (arrays["energy"] / np.diff(ptr))[np.isfinite(arrays["energy"])].astype(np.float64)
        bounds = [float(per_atom.min()), float(per_atom.max())] if per_atom.size else None
        out["energy_per_atom"] = {"count": per_atom.size, "sum": float(per_atom.sum()), "bounds": bounds}
    return out


def labelled(ptr: np.ndarray, values: np.ndarray, level: str) -> np.ndarray:
    """Frames whose values are all known, `(F,)`, bool: NaN stands for what is not."""
    if values.dtype.kind != "f":
        return np.ones(len(ptr) - 1, dtype=bool)
    known = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return known if level == "frame" else np.logical_and.reduceat(known, ptr[:-1])


def rows_of(frame: Mapping[str, Any], level: str) -> tuple[int, ...]:
    """First axis of an array of one frame: its atoms, or none for what is the frame's own."""
    return (len(frame["numbers"]),) if level == "atom" else ()


def missing_values(key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What stands where a part of a store has no such array: NaN, no cell, no periodic direction.

    Raises:
        DataError: If nothing can stand for a missing value.
    """
    if key in ("cell", "pbc"):
        return np.zeros(shape, dtype=dtype)
    if dtype.kind != "f":
        raise DataError(f"{key}: some frames have it and some do not, but {dtype} has no value for what is missing; give it to all")
    return np.full(shape, np.nan, dtype=dtype)
