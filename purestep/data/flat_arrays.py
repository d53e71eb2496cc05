"""From frames to the flat arrays that a store is written from, and the order of the components of stress."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from .edges import fault_of_edges
from .layout import LEVELS, missing_values, pointers_of, rows_of

VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # where xx, xy, ... stand in ASE's order xx, yy, zz, yz, xz, xy


def matrix_from_voigt(stress: np.ndarray) -> np.ndarray:
    """From six components in ASE's order (xx, yy, zz, yz, xz, xy) to the symmetric matrix: `(..., 6)` to `(..., 3, 3)`."""
    return stress[..., np.array(VOIGT)]


def arrays_from_frames(frames: Iterable[Mapping[str, Any]], levels: Mapping[str, str] | None = None) -> dict[str, np.ndarray]:
    """Flat arrays, as `write_store` takes them, from frames. What some frames lack is NaN there; no cell is a cell of zeros.

    Args:
        levels: "atom", "frame" or "edge" for other arrays than the known ones.

    Raises:
        DataError: If there is no frame, nothing can stand for what a frame lacks, or a frame's edges are not right.
    """
    frames = list(frames)
    if not frames:
        raise DataError("there are no frames to write")
    levels = {**LEVELS, **(levels or {})}
    with_edges = any("edge_index" in frame for frame in frames)
    for number, frame in enumerate(frames):
        lacking = "has no edge_index, which other frames have" if with_edges and "edge_index" not in frame else None
        if fault := fault_of_edges(frame, levels) or lacking:
            raise DataError(f"frame {number}: {fault}")
    keys = list(dict.fromkeys(key for frame in frames for key in frame))
    arrays = {}
    for level, name in pointers_of({key: levels[key] for key in keys if key in levels}).items():
        arrays[name] = np.concatenate([[0], np.cumsum([rows_of(frame, level) for frame in frames])]).astype(np.int64)
    for key in keys:
        level = levels.get(key, "frame")
        like = _rows(key, next(frame[key] for frame in frames if key in frame))
        shape = like.shape if level == "frame" else like.shape[1:]
        rows = [
            _rows(key, frame[key]) if key in frame else missing_values(key, (*rows_of(frame, level), *shape), like.dtype)
            for frame in frames
        ]
        arrays[key] = np.stack(rows) if level == "frame" else np.concatenate(rows)
    return arrays


def _rows(key: str, value: Any) -> np.ndarray:
    return np.asarray(value).T.astype(np.int64) if key == "edge_index" else np.asarray(value)
