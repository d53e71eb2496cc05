"""Neighbour lists inside a step: a registered operator with outputs of fixed size, which a captured graph calls anew each time.

The library behind it runs on the host. Called from a graph it is opaque, so positions are read when the graph runs, never baked in.
"""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .batch import AtomicBatch
from .neighbours import neighbour_list


def with_neighbours(batch: AtomicBatch, cutoff: float, capacity: int) -> AtomicBatch:
    """The batch with its neighbour list, padded to a fixed number of edges; for use in a model's forward or a hook.

    Padding edges join two padding atoms, or the last atom with itself where there are none, and are masked.

    Args:
        batch: Its old edges, if any, are replaced; arrays per edge, which belong to those, are left out.
        cutoff: Largest distance, exclusive, Angstrom.
        capacity: Number of edges of the result.

    Raises:
        DataError: When it runs, if there are more edges than that; the message says how many.
    """
    mask = torch.ones_like(batch.batch, dtype=torch.bool) if batch.atom_mask is None else batch.atom_mask
    cell = batch.positions.new_zeros((batch.num_graphs, 3, 3)) if batch.cell is None else batch.cell
    periodic = torch.zeros((batch.num_graphs, 3), dtype=torch.bool, device=mask.device) if batch.pbc is None else batch.pbc
    edge_index, edge_shift, edge_mask = padded_neighbour_list(
        batch.positions.detach(), batch.ptr, mask, cell.detach(), periodic, float(cutoff), capacity
    )
    return batch.replace(edge_index=edge_index, edge_shift=edge_shift.to(batch.positions.dtype), edge_mask=edge_mask, per_edge=None)


@torch.library.custom_op("purestep::padded_neighbour_list", mutates_args=())
def padded_neighbour_list(
    positions: Tensor, ptr: Tensor, atom_mask: Tensor, cell: Tensor, pbc: Tensor, cutoff: float, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbour lists of all graphs: `edge_index` `(2, capacity)`, `edge_shift` `(capacity, 3)`, int64, and `edge_mask` `(capacity,)`."""
    place, bounds, real, boxes, periodic = (
        tensor.cpu().numpy() for tensor in (positions.to(torch.float64), ptr, atom_mask, cell.to(torch.float64), pbc)
    )
    found = []
    for graph, (first, end) in enumerate(itertools.pairwise(bounds)):
        if first < end and real[first]:
            edges, shift = neighbour_list(place[first:end], cutoff, boxes[graph], periodic[graph])
            found.append((edges + first, shift))
    count = sum(edges.shape[1] for edges, _ in found)
    if count > capacity:
        raise DataError(
            f"a batch of {len(bounds) - 1} graphs has {count} edges within {cutoff} Angstrom, but there is room for {capacity}; "
            "give a larger capacity"
        )
    edge_index, edge_shift = np.empty((2, capacity), dtype=np.int64), np.zeros((capacity, 3), dtype=np.int64)
    edge_index[:, count:] = np.array([[max(len(real) - 2, 0) if len(real) > 1 and not real[-2] else len(real) - 1], [len(real) - 1]])
    if found:
        edge_index[:, :count] = np.concatenate([edges for edges, _ in found], axis=1)
        edge_shift[:count] = np.concatenate([shift for _, shift in found])
    arrays = (edge_index, edge_shift, np.arange(capacity) < count)
    return tuple(torch.from_numpy(array).to(positions.device) for array in arrays)  # type: ignore[return-value]


@padded_neighbour_list.register_fake
def _shapes(
    positions: Tensor, ptr: Tensor, atom_mask: Tensor, cell: Tensor, pbc: Tensor, cutoff: float, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    integers = ptr.new_empty((2, capacity), dtype=torch.int64)
    return integers, ptr.new_empty((capacity, 3), dtype=torch.int64), ptr.new_empty((capacity,), dtype=torch.bool)


@padded_neighbour_list.register_vmap
def _one_by_one(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Under `torch.func.vmap`: one list after the other."""
    members = [
        [arg.select(dim, number) if isinstance(arg, Tensor) and dim is not None else arg for arg, dim in zip(args, in_dims, strict=True)]
        for number in range(info.batch_size)
    ]
    results = [padded_neighbour_list(*member) for member in members]
    return tuple(torch.stack(outputs) for outputs in zip(*results, strict=True)), (0, 0, 0)
