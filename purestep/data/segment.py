"""One committed part of a store: a zarr group of flat arrays, read frame by frame through a small cache of chunks.

Rows of all frames follow each other; `ptr` says where each frame's atoms begin, `edge_ptr` where its edges do. What a store is
made of is in `store.py`.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from .layout import pointers_of

_KEPT_CHUNKS = 256


class Segment:
    """Frames of one zarr group.

    Args:
        group: A zarr v3 group with `ptr`, `edge_ptr` if there are edges, and an array for each key.
        levels: "atom", "frame" or "edge" by key.
    """

    def __init__(self, group: Any, levels: Mapping[str, str]):
        self.levels = dict(levels)
        self.pointers: dict[str, np.ndarray] = {level: group[name][:] for level, name in pointers_of(levels).items()}
        self.ptr = self.pointers["atom"]
        self.arrays: dict[str, Any] = {key: group[key] for key in levels}
        rows = {key: _Rows(array) for key, array in self.arrays.items()}
        self._plan = [(key, self.levels[key] == "atom", found) for key, found in rows.items() if self.levels[key] != "edge"]
        self._edge_plan = [(key, found) for key, found in rows.items() if self.levels[key] == "edge"]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def frame(self, index: int) -> dict[str, np.ndarray]:
        """One frame: arrays by key, one row per atom or edge, or the frame's own row; `edge_index` is `(2, E)`."""
        first, end = int(self.ptr[index]), int(self.ptr[index + 1])
        frame = {key: rows.between(first, end) if per_atom else rows.row(index) for key, per_atom, rows in self._plan}
        if self._edge_plan:
            first, end = self.pointers["edge"][index : index + 2].tolist()
            frame |= {key: rows.between(first, end) for key, rows in self._edge_plan}
            frame["edge_index"] = frame["edge_index"].T
        return frame


class _Rows:
    """Rows of a zarr array; decompressed chunks are kept."""

    def __init__(self, array: Any):
        self._array, self._size = array, array.chunks[0]
        self._chunk = functools.lru_cache(_KEPT_CHUNKS)(self._read)

    def row(self, index: int) -> np.ndarray:
        number, offset = divmod(index, self._size)
        return self._chunk(number)[offset]

    def between(self, first: int, end: int) -> np.ndarray:
        number, start = divmod(first, self._size)
        if end - number * self._size <= self._size:
            return self._chunk(number)[start : start + end - first]
        bounds = [first, *range((number + 1) * self._size, end, self._size), end]
        return np.concatenate([self.between(a, b) for a, b in itertools.pairwise(bounds)])

    def _read(self, number: int) -> np.ndarray:
        chunk = self._array[number * self._size : (number + 1) * self._size]
        chunk.flags.writeable = False  # frames are views of what is kept
        return chunk
