"""The padded form of atoms' values, a row of equal width for each graph, and the way back to the concatenated form of a batch.

It is for models that want `(B, width, ...)`, as attention over atoms does. Padding of a whole batch to fixed sizes is in `collating.py`.
"""

import torch
from torch import Tensor

from .batch import AtomicBatch


def to_padded(values: Tensor, batch: AtomicBatch, width: int) -> Tensor:
    """Values of atoms, `(N, ...)`, as one row for each graph, `(B, width, ...)`; zeros where `padded_mask` is False.

    Args:
        values: Of the batch's atoms; floats or whole numbers.
        width: Room for the atoms of a graph, at least `num_nodes_per_graph.max()`; a plain number, so the shape is known to a captured
            step. A graph that does not fit cannot go unnoticed: all that is its own becomes NaN, or -1 for whole numbers.
    """
    slots = torch.arange(width, device=values.device)
    rows = values[(batch.ptr[:-1, None] + slots).clamp(max=max(values.shape[0] - 1, 0))]
    padded = torch.where(_like(padded_mask(batch, width), rows), rows, torch.zeros_like(rows))
    return _spoiled(padded, batch.num_nodes_per_graph[:, None] > width)


def from_padded(values: Tensor, batch: AtomicBatch) -> Tensor:
    """Values of atoms, `(B, width, ...)`, one after the other as in the batch, `(N, ...)`; zeros for padding atoms.

    Args:
        values: As `to_padded` gives them. Atoms of a graph that did not fit are NaN, or -1 for whole numbers.
    """
    counts, width = batch.num_nodes_per_graph, values.shape[1]
    place = torch.arange(batch.batch.shape[0], device=values.device) - batch.ptr[batch.batch]
    rows = values[batch.batch, place.clamp(max=width - 1)]
    found = torch.where(_like(place < counts[batch.batch], rows), rows, torch.zeros_like(rows))
    return _spoiled(found, counts[batch.batch] > width)


def padded_mask(batch: AtomicBatch, width: int) -> Tensor:
    """Which places of the padded form hold a real atom, `(B, width)`."""
    return torch.arange(width, device=batch.ptr.device) < batch.num_nodes_per_graph[:, None]


def _spoiled(values: Tensor, wrong: Tensor) -> Tensor:
    sign = float("nan") if values.is_floating_point() else -1
    return torch.where(_like(wrong, values), torch.full_like(values, sign), values)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))
