"""Frames: single structures as mappings of NumPy arrays, and their preparation for training.

A frame has the names of a store (`numbers`, `positions`, `energy`, ...); a prepared one also has its neighbour list, or the edges it
brought along. Frames become batches in `collating.py`.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from ..errors import DataError
from .edges import fault_of_edges
from .layout import LEVELS
from .neighbours import neighbour_list
from .references import sum_of_references

Frame = Mapping[str, np.ndarray]

_PREPARED_AS = {"atom": "per_atom", "frame": "per_graph", "edge": "per_edge"}


class Frames(Protocol):
    """A data set of frames: a store, a part of one, or anything alike."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Frame: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the content does."""


class PreparedFrames:
    """Frames with neighbour lists, in the precision of training; each is prepared when it is first asked for, and kept in memory.

    Energies are those above the sum of the atoms' reference energies, subtracted in float64 before any rounding.

    Args:
        dataset: Frames as they are stored, total energies in float64. If it says what `levels` its arrays have, as a store does, arrays
            of the user go into the batches too.
        cutoff: Reach of the neighbour list, Angstrom; without effect on frames that have an `edge_index` of their own.
        dtype: `numpy.float32` or `numpy.float64`.
        reference_energies: eV by atomic number; None subtracts nothing.
        most_kept: The most prepared frames to keep; None keeps all.
    """

    def __init__(
        self,
        dataset: Frames,
        cutoff: float,
        *,
        dtype: Any = np.float32,
        reference_energies: Mapping[int, float] | None = None,
        most_kept: int | None = None,
    ):
        self.dataset, self.cutoff, self.dtype, self.reference_energies = dataset, cutoff, np.dtype(dtype), reference_energies
        self.most_kept = most_kept
        self._prepared = functools.lru_cache(most_kept)(self._prepare)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Frame:
        return self._prepared(index)

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # what is kept stays: a worker keeps frames of its own
        settings = {"dtype": self.dtype, "reference_energies": self.reference_energies, "most_kept": self.most_kept}
        return _rebuild, (self.dataset, self.cutoff, settings)

    def _prepare(self, index: int) -> Frame:
        levels = getattr(self.dataset, "levels", None)
        return prepare(self.dataset[index], self.cutoff, dtype=self.dtype, reference_energies=self.reference_energies, levels=levels)

    @property
    def fingerprint(self) -> str:
        """Hash of the frames and of how they are prepared."""
        references = sorted((self.reference_energies or {}).items())
        parts = (self.dataset.fingerprint, float(self.cutoff), self.dtype.str, references)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _rebuild(dataset: Frames, cutoff: float, settings: dict[str, Any]) -> PreparedFrames:
    return PreparedFrames(dataset, cutoff, **settings)


def prepare(
    frame: Frame,
    cutoff: float,
    *,
    dtype: Any = np.float32,
    reference_energies: Mapping[int, float] | None = None,
    levels: Mapping[str, str] | None = None,
) -> Frame:
    """One frame with `edge_index` and `edge_shift`, floats in `dtype`, and the energy above its references.

    A frame that has an `edge_index` of its own, `(2, E)`, keeps these edges in their order, whatever their length, with its `edge_shift`
    `(E, 3)` or shifts of zero: then no neighbour list is made.

    Args:
        levels: "atom", "frame" or "edge" for arrays of the user, which are then kept as `per_atom/<name>`, `per_graph/<name>` or
            `per_edge/<name>`. Arrays per edge need edges of the frame's own.

    Raises:
        DataError: If an element has no reference energy, or the frame's own edges are not right.
    """
    edge_index, edge_shift = _edges(frame, cutoff, levels or {})
    out = {"numbers": frame["numbers"].astype(np.int64), "edge_index": edge_index, "edge_shift": edge_shift.astype(dtype)}
    for key in ("positions", "cell", "forces", "stress"):
        if key in frame:
            out[key] = np.asarray(frame[key]).astype(dtype)
    if "pbc" in frame:
        out["pbc"] = np.asarray(frame["pbc"], dtype=bool)
    if "energy" in frame:
        reference = 0.0 if reference_energies is None else sum_of_references(out["numbers"], reference_energies)
        out["energy"] = np.asarray(np.float64(frame["energy"]) - reference).astype(dtype)
    for key in [key for key in levels or () if key in frame and key not in LEVELS]:
        value = np.asarray(frame[key])
        name = f"{_PREPARED_AS[levels[key]]}/{key}"  # type: ignore[index]
        out[name] = value.astype(dtype) if value.dtype.kind == "f" else value
    return out


def _edges(frame: Frame, cutoff: float, levels: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """The frame's own edges and their shifts, or its neighbour list."""
    if fault := fault_of_edges(frame, {**LEVELS, **levels}):
        raise DataError(f"a frame that is to be prepared: {fault}")
    if "edge_index" not in frame:
        return neighbour_list(np.asarray(frame["positions"], dtype=np.float64), cutoff, frame.get("cell"), frame.get("pbc"))
    edge_index = np.asarray(frame["edge_index"]).astype(np.int64)
    return edge_index, np.asarray(frame.get("edge_shift", np.zeros((edge_index.shape[1], 3))))
