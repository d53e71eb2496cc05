"""What the arrays of a store are called, what they mean and how they are checked; also their fingerprint and their summary.

Units are eV, Angstrom, eV/Angstrom, eV/Angstrom^3 (tension positive), and energies are total energies.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from .edges import check_edge_ptr, check_flat_edges

FORMAT = "purestep atomic frames"
SPLITS = ("train", "validation", "test")
LEVELS = {
    **dict.fromkeys(("numbers", "positions", "forces"), "atom"),
    **dict.fromkeys(("energy", "cell", "pbc", "stress", "group", "split"), "frame"),
    **dict.fromkeys(("edge_index", "edge_shift"), "edge"),
}
UNITS = {"positions": "Angstrom", "cell": "Angstrom", "energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"}
ROWS = {"positions": (3,), "forces": (3,), "cell": (3, 3), "pbc": (3,), "stress": (3, 3), "edge_index": (2,), "edge_shift": (3,)}


def levels_of(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Levels of the known arrays among the given ones, and those that the caller states."""
    return {**{key: level for key, level in LEVELS.items() if key in arrays}, **(levels or {})}


def pointers_of(levels: Mapping[str, str]) -> dict[str, str]:
    """Names of the arrays that say where each frame's rows begin, by level; that of edges only where there are any."""
    return {"atom": "ptr", "edge": "edge_ptr"} if "edge" in levels.values() else {"atom": "ptr"}


def check_arrays(arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> None:
    """Check that arrays make up frames.

    Raises:
        DataError: With the array, what was wrong and what was expected.
    """
    pointers = pointers_of(levels)
    needed = ("ptr", "numbers", "positions", *(("edge_ptr", "edge_index") if "edge" in pointers else ()))
    if missing := [key for key in needed if key not in arrays]:
        raise DataError(f"a store needs the arrays {', '.join(missing)}; given: {', '.join(sorted(arrays))}")
    if unknown := sorted(arrays.keys() - levels.keys() - set(pointers.values())):
        raise DataError(
            f"say whether the arrays {', '.join(unknown)} have rows per atom, per frame or per edge: levels={{{unknown[0]!r}: 'frame'}}"
        )
    ptr = arrays["ptr"]
    if ptr.ndim != 1 or len(ptr) < 2 or ptr[0] != 0 or (np.diff(ptr) < 1).any():
        raise DataError("ptr must start at 0 and ascend, one atom or more in each frame")
    sizes = {"frame": len(ptr) - 1, "atom": int(ptr[-1])}
    if "edge" in pointers:
        check_edge_ptr(arrays["edge_ptr"], sizes["frame"])
        sizes["edge"] = int(arrays["edge_ptr"][-1])
    counts = " and ".join(f"{size} {level}s" for level, size in sizes.items())
    for key, level in levels.items():
        if level not in sizes:
            raise DataError(f"{key}: level must be 'atom', 'frame' or 'edge', got {level!r}")
        expected = (sizes[level], *ROWS.get(key, () if key in LEVELS else arrays[key].shape[1:]))
        if arrays[key].shape != expected:
            raise DataError(f"{key}: shape {arrays[key].shape}, expected {expected} for {counts}")
    if "edge" in pointers:
        check_flat_edges(arrays)
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
    ptr, pointers = arrays["ptr"], pointers_of(levels)
    out: dict[str, Any] = {
        "num_frames": len(ptr) - 1,
        "num_atoms": int(ptr[-1]),
        **({"num_edges": int(arrays["edge_ptr"][-1])} if "edge" in pointers else {}),
        "levels": dict(levels),
        "elements": [int(number) for number in np.unique(arrays["numbers"])],
        "labelled_frames": {
            key: int(labelled(arrays[pointers.get(level, "ptr")], arrays[key], level).sum()) for key, level in levels.items()
        },
        "fingerprint": fingerprint({key: arrays[key] for key in (*pointers.values(), *levels)}),
    }
    if "energy" in levels:
        per_atom = (arrays["energy"] / np.diff(ptr))[np.isfinite(arrays["energy"])].astype(np.float64)
        bounds = [float(per_atom.min()), float(per_atom.max())] if per_atom.size else None
        out["energy_per_atom"] = {"count": per_atom.size, "sum": float(per_atom.sum()), "bounds": bounds}
    return out


def labelled(ptr: np.ndarray, values: np.ndarray, level: str) -> np.ndarray:
    """Frames whose values are all known, `(F,)`, bool: NaN stands for what is not. `ptr` is that of the level."""
    if values.dtype.kind != "f":
        return np.ones(len(ptr) - 1, dtype=bool)
    known = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if level == "frame":
        return known
    unknown_before = np.concatenate([[0], np.cumsum(~known)])  # unlike `reduceat` it knows frames without rows
    return unknown_before[ptr[1:]] == unknown_before[ptr[:-1]]


def rows_of(frame: Mapping[str, Any], level: str) -> tuple[int, ...]:
    """First axis of an array of one frame: its atoms, its own edges, or none for what has one value a frame.

    Raises:
        DataError: If the frame has no edges of its own.
    """
    if level == "edge":
        if "edge_index" not in frame:
            raise DataError("a frame has no edge_index, where others have arrays per edge; give edges to all")
        return (np.shape(frame["edge_index"])[1],)
    return (len(frame["numbers"]),) if level == "atom" else ()


def missing_values(key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What stands where a part of a store has no such array: NaN, no cell, no periodic direction, no shift.

    Raises:
        DataError: If nothing can stand for a missing value.
    """
    if key in ("cell", "pbc", "edge_shift"):
        return np.zeros(shape, dtype=dtype)
    if dtype.kind != "f":
        raise DataError(f"{key}: some frames have it and some do not, but {dtype} has no value for what is missing; give it to all")
    return np.full(shape, np.nan, dtype=dtype)
