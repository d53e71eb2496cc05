"""From frames to the flat arrays that a store is written from, and the order of the components of stress."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from .layout import LEVELS, missing_values

VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # where xx, xy, ... stand in ASE's order xx, yy, zz, yz, xz, xy


def matrix_from_voigt(stress: np.ndarray) -> np.ndarray:
    """From six components in ASE's order (xx, yy, zz, yz, xz, xy) to the symmetric matrix: `(..., 6)` to `(..., 3, 3)`."""
    return stress[..., np.array(VOIGT)]


def arrays_from_frames(frames: Iterable[Mapping[str, Any]], levels: Mapping[str, str] | None = None) -> dict[str, np.ndarray]:
    """Flat arrays, as `write_store` takes them, from frames. What some frames lack is NaN there; no cell is a cell of zeros.

    Args:
        levels: "atom" or "frame" for other arrays than the known ones.

    Raises:
        DataError: If there is no frame, or nothing can stand for what a frame lacks.
    """
    frames = list(frames)
    if not frames:
        raise DataError("there are no frames to write")
    levels = {**LEVELS, **(levels or {})}
    counts = [len(frame["numbers"]) for frame in frames]
    arrays = {"ptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)}
    for key in dict.fromkeys(key for frame in frames for key in frame):
        per_atom = levels.get(key) == "atom"
        like = np.asarray(next(frame[key] for frame in frames if key in frame))
        shape = like.shape[1:] if per_atom else like.shape
        rows = [
            np.asarray(frame[key]) if key in frame else missing_values(key, ((count, *shape) if per_atom else shape), like.dtype)
            for frame, count in zip(frames, counts, strict=True)
        ]
        arrays[key] = np.concatenate(rows) if per_atom else np.stack(rows)
    return arrays
