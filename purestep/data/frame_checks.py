"""From a record of some source to a frame in our names and units, or the reason why it cannot be one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .edges import fault_of_edges
from .elements import SYMBOLS, atomic_numbers
from .flat_arrays import matrix_from_voigt
from .layout import LEVELS, SPLITS
from .neighbours import neighbour_list

CLOSEST = 0.1
"""Atoms nearer than this count as one atom given twice, Angstrom. The shortest bond, of H2, has 0.74."""

_NAMES_OF_SPLITS = {name: SPLITS.index(part) for part, names in {
    "train": ("train", "training", "0"), "validation": ("validation", "val", "valid", "1"), "test": ("test", "testing", "2"),
}.items() for name in names}  # fmt: skip


class BadFrameError(ValueError):
    """A structure that cannot be a frame; the message is the reason."""


def frame_of(
    values: Mapping[str, Any], keys: Mapping[str, str], factors: Mapping[str, float], levels: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """One frame from the values of a record.

    Args:
        values: In the names and units of the source.
        keys: Names in the source by ours, where they differ.
        factors: What to multiply by, by key.
        levels: "atom", "frame" or "edge" for arrays of the user.

    Raises:
        BadFrameError: With the reason.
    """
    for ours, theirs in keys.items():
        if ours in ("numbers", "positions") and theirs not in values and ours not in values:
            raise BadFrameError(f"has no {theirs!r}; it has {', '.join(sorted(map(str, values)))}")
    wanted = (*LEVELS, "gradient", "virial", *levels)
    found = {key: _array(key, values[name]) for key in wanted if (name := _name(key, keys, values)) in values and values[name] is not None}
    if missing := [key for key in ("numbers", "positions") if key not in found]:
        raise BadFrameError(f"has no {' and no '.join(missing)}; it has {', '.join(sorted(map(str, values)))}")
    frame = {key: array * factors[key] if key in factors else array for key, array in found.items()}
    frame["numbers"] = _numbers(frame["numbers"])
    if "cell" in frame:
        frame["cell"], frame["pbc"] = _cell(frame["cell"], frame.get("pbc"))
    elif frame.get("pbc", np.zeros(3)).any():
        raise BadFrameError("is periodic but has no cell")
    else:
        frame.pop("pbc", None)
    _derive(frame)
    _check_shapes(frame, levels)
    _check_values(frame)
    return frame


def _name(key: str, keys: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """The user's name; else our own. A name that the user gave and a record lacks is a label that is missing."""
    return keys[key] if key in keys and (keys[key] in values or key not in ("numbers", "positions")) else key


def _array(key: str, value: Any) -> np.ndarray:
    if key in ("group", "split"):
        return value
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if key == "numbers":
        return array
    if array.dtype.kind not in "fiub":
        raise BadFrameError(f"{key} holds {array.dtype}, not numbers")
    return array.astype(np.float64) if array.dtype.kind == "f" or (key in LEVELS and key not in ("pbc", "edge_index")) else array


def _numbers(given: np.ndarray) -> np.ndarray:
    try:
        numbers = atomic_numbers(given).reshape(-1)
    except ValueError as error:
        raise BadFrameError(str(error)) from error
    if not len(numbers):
        raise BadFrameError("has no atoms")
    if numbers.dtype.kind == "f" and not (np.mod(numbers, 1) == 0).all():
        raise BadFrameError(f"atomic numbers must be whole, got {numbers.tolist()[:5]}")
    if unknown := sorted(set(numbers[(numbers < 1) | (numbers >= len(SYMBOLS))].tolist())):
        raise BadFrameError(f"unknown elements: atomic numbers {unknown}")
    return numbers.astype(np.uint8)


def _cell(given: np.ndarray, pbc: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    cell = np.diag(given) if given.shape == (3,) else given.reshape(3, 3) if given.size == 9 else given
    if cell.shape != (3, 3):
        raise BadFrameError(f"cell has the shape {given.shape}, expected (3, 3)")
    periodic = np.full(3, cell.any()) if pbc is None else np.broadcast_to(np.asarray(pbc, dtype=bool), (3,)).copy()
    if not np.isfinite(cell).all():
        raise BadFrameError("cell is not finite")
    rows = cell[periodic]
    if periodic.any() and not np.sqrt(max(np.linalg.det(rows @ rows.T), 0)) > 1e-6 * np.prod(np.linalg.norm(rows, axis=1)):
        raise BadFrameError(f"is periodic in {periodic.tolist()} but its cell {cell.tolist()} spans no volume")
    return cell, periodic


def _derive(frame: dict[str, np.ndarray]) -> None:
    """Forces from a gradient, stress from a virial, labels in the shapes of a store."""
    gradient, virial = frame.pop("gradient", None), frame.pop("virial", None)
    if gradient is not None and "forces" not in frame:
        frame["forces"] = gradient
    if virial is not None and "stress" not in frame:
        if "cell" not in frame:
            raise BadFrameError("has a virial but no cell")
        frame["stress"] = _matrix("virial", virial) / -abs(np.linalg.det(frame["cell"]))
    if "energy" in frame and frame["energy"].size == 1:
        frame["energy"] = frame["energy"].reshape(())
    if "stress" in frame:
        frame["stress"] = _matrix("stress", frame["stress"])
    if "split" in frame:
        frame["split"] = _split(frame["split"])


def _split(given: Any) -> np.ndarray:
    name = str(given).lower()
    if name not in _NAMES_OF_SPLITS:
        raise BadFrameError(f"unknown part {given!r}; expected train, validation or test")
    return np.array(_NAMES_OF_SPLITS[name], dtype=np.uint8)


def _matrix(key: str, given: np.ndarray) -> np.ndarray:
    if given.size not in (6, 9):
        raise BadFrameError(f"{key} has the shape {given.shape}, expected (3, 3), or (6,) in the order xx, yy, zz, yz, xz, xy")
    matrix = matrix_from_voigt(given.reshape(6)) if given.size == 6 else given.reshape(3, 3)
    if np.abs(matrix - matrix.T).max() > 1e-6 * max(np.abs(matrix).max(), 1e-3):
        raise BadFrameError(f"{key} is not symmetric: {matrix.tolist()}")
    return matrix


def _check_shapes(frame: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> None:
    count = len(frame["numbers"])
    expected = {"positions": (count, 3), "forces": (count, 3), "energy": ()}
    for key, shape in expected.items():
        if key in frame and frame[key].shape != shape:
            raise BadFrameError(f"{key} has the shape {frame[key].shape}, expected {shape} for {count} atoms")
    for key in levels:
        if key in frame and levels[key] == "atom" and frame[key].shape[:1] != (count,):
            raise BadFrameError(f"{key} has the shape {frame[key].shape}, expected {count} rows, one per atom")
    if fault := fault_of_edges(frame, {**LEVELS, **levels}):
        raise BadFrameError(fault)


def _check_values(frame: Mapping[str, np.ndarray]) -> None:
    for key in ("positions", "energy", "forces", "stress"):
        if key in frame and not np.isfinite(frame[key]).all():
            raise BadFrameError(f"{key} is not finite")
    (sender, receiver), shift = neighbour_list(frame["positions"], CLOSEST, frame.get("cell"), frame.get("pbc"))
    if len(sender):
        image = "" if not shift[0].any() else f", an image in cell {shift[0].tolist()}"
        raise BadFrameError(f"atoms {receiver[0]} and {sender[0]}{image} are nearer than {CLOSEST} Angstrom: one atom given twice?")
