"""Edges that frames bring along in place of a neighbour list: what they must be, one frame at a time and in flat arrays.

A frame holds `edge_index` `(2, E)`, sender and receiver within the frame, where there are any `edge_shift` `(E, 3)`, and arrays of the
user with one row an edge. Flat arrays hold the edges of all frames under each other, `edge_index` as rows `(E, 2)`; `edge_ptr` says where
each frame's edges begin.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError


def fault_of_edges(frame: Mapping[str, Any], levels: Mapping[str, str]) -> str | None:
    """Why a frame's edges, and what it has per edge, cannot be right; None if they can."""
    own = [key for key, level in levels.items() if level == "edge" and key in frame and key != "edge_index"]
    if "edge_index" not in frame:
        return f"has {', '.join(own)} with rows per edge, but no edge_index" if own else None
    edge_index, count = np.asarray(frame["edge_index"]), len(frame["numbers"])
    if edge_index.ndim != 2 or len(edge_index) != 2 or (edge_index.size and edge_index.dtype.kind not in "iu"):
        return f"edge_index is {edge_index.dtype} {edge_index.shape}, expected whole numbers (2, E), sender and receiver"
    if (outside := _outside(edge_index, np.array(count))).any():
        return _text_of_outside(edge_index[:, outside.argmax()], count)
    for key in own:
        shape = np.shape(frame[key])
        if shape[:1] != edge_index.shape[1:]:
            return f"{key} has the shape {shape}, expected {edge_index.shape[1]} rows, one per edge"
    shift = np.asarray(frame.get("edge_shift", np.zeros((edge_index.shape[1], 3))))
    if shift.shape[1:] != (3,) or _broken(shift).any():
        return f"edge_shift is {shift.dtype} {shift.shape}, expected whole numbers of cell vectors (E, 3)"
    return None


def check_edge_ptr(edge_ptr: np.ndarray, num_frames: int) -> None:
    """Check where the edges of each frame begin.

    Raises:
        DataError: If these are no such places.
    """
    if edge_ptr.shape != (num_frames + 1,) or edge_ptr.dtype.kind not in "iu" or edge_ptr[0] != 0 or (np.diff(edge_ptr) < 0).any():
        raise DataError(f"edge_ptr must start at 0 and never descend, with {num_frames + 1} whole numbers for {num_frames} frames")


def check_flat_edges(arrays: Mapping[str, np.ndarray]) -> None:
    """Check that edges, in arrays of the right shapes, join atoms of their frames.

    Raises:
        DataError: With the frame and what is wrong.
    """
    ptr, edge_ptr, edge_index = arrays["ptr"], arrays["edge_ptr"], arrays["edge_index"]
    if edge_index.dtype.kind not in "iu":
        raise DataError(f"edge_index: {edge_index.dtype}, expected whole numbers")
    counts = np.repeat(np.diff(ptr), np.diff(edge_ptr))
    if (outside := _outside(edge_index.T, counts)).any():
        at = int(outside.argmax())
        raise DataError(f"frame {_frame_of_edge(edge_ptr, at)}: {_text_of_outside(edge_index[at], int(counts[at]))}")
    if "edge_shift" in arrays and (broken := _broken(arrays["edge_shift"])).any():
        raise DataError(f"frame {_frame_of_edge(edge_ptr, int(broken.argmax()))}: edge_shift is not a whole number of cell vectors")


def _outside(edge_index: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.any((edge_index < 0) | (edge_index >= counts), axis=0)


def _text_of_outside(edge: np.ndarray, count: int) -> str:
    sender, receiver = edge.tolist()
    return f"edge_index has an edge from atom {sender} to atom {receiver}, but the frame has the atoms 0 to {count - 1}"


def _broken(shift: np.ndarray) -> np.ndarray:
    return ~(np.mod(shift, 1) == 0).all(axis=1)  # so written, it finds NaN too


def _frame_of_edge(edge_ptr: np.ndarray, edge: int) -> int:
    return int(np.searchsorted(edge_ptr, edge, side="right")) - 1
