"""What the potentials read of a batch, and the geometry they share: edge vectors, distances, the cutoff, sums over neighbours."""

import math
from typing import Protocol

import torch
from torch import Tensor

from ..core.ranges import Range

NUM_LAYERS = Range("lie in [1, 1000]", lambda x: 1 <= x <= 1000)
"""How many blocks a potential may have; a slip of some zeros would otherwise make blocks until memory ends."""


class Atoms(Protocol):
    """Structures in one concatenated layout, with their neighbour list; `purestep.AtomicBatch` is one."""

    @property
    def positions(self) -> Tensor:
        """`(N, 3)`, Angstrom."""

    @property
    def numbers(self) -> Tensor:
        """Atomic numbers `(N,)`."""

    @property
    def batch(self) -> Tensor:
        """Graph of each atom `(N,)`."""

    @property
    def atom_mask(self) -> Tensor | None:
        """True for real atoms `(N,)`."""

    @property
    def edge_index(self) -> Tensor | None:
        """Sender and receiver `(2, E)`."""

    @property
    def edge_shift(self) -> Tensor | None:
        """Cell vectors to add to each edge `(E, 3)`."""

    @property
    def edge_mask(self) -> Tensor | None:
        """True for real edges `(E,)`."""

    @property
    def cell(self) -> Tensor | None:
        """Cell vectors as rows `(B, 3, 3)`, Angstrom."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs `B`."""


def edge_vectors(atoms: Atoms, positions: Tensor, cell: Tensor | None) -> Tensor:
    """Vectors from receivers to senders, `(E, 3)`, with the cell shifts."""
    sender, receiver = senders_and_receivers(atoms)
    vectors = positions[sender] - positions[receiver]
    if cell is None or atoms.edge_shift is None:
        return vectors
    per_edge = cell[atoms.batch[receiver]]
    return vectors + (atoms.edge_shift.to(cell.dtype).unsqueeze(-1) * per_edge).sum(-2)


def senders_and_receivers(atoms: Atoms) -> tuple[Tensor, Tensor]:
    """The two rows of the neighbour list.

    Raises:
        ValueError: If the batch has none.
    """
    if atoms.edge_index is None:
        raise ValueError(
            "this potential needs a neighbour list, but batch.edge_index is None; collate frames that were prepared with a cutoff"
        )
    return atoms.edge_index[0], atoms.edge_index[1]


def distances(vectors: Tensor, cutoff: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Lengths of the edges, and which of them count; `(E,)` each.

    Edges that are masked, of length zero, or out of reach get length 1 *before* the root is taken: the derivative of a root at zero is
    infinite, and infinity times a mask is not a number.
    """
    squares = vectors.square().sum(-1)
    counts = (squares > 0) & (squares < cutoff * cutoff)
    if mask is not None:
        counts = counts & mask
    return torch.where(counts, squares, 1.0).sqrt(), counts


def cosine_cutoff(lengths: Tensor, counts: Tensor, cutoff: float) -> Tensor:
    """Weight of an edge, `(cos(pi r / cutoff) + 1) / 2`, which reaches 0 with slope 0 at the cutoff; 0 where `counts` is False.

    Reference:
        Behler, "Atom-centered symmetry functions for constructing high-dimensional neural network potentials", 2011, equation 4.
    """
    return torch.where(counts, 0.5 * (torch.cos(lengths * (math.pi / cutoff)) + 1.0), 0.0)


def sum_by_index(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows that share an index: `(E, ...)` to `(size, ...)`."""
    return values.new_zeros((size, *values.shape[1:])).index_add(0, index, values)


def sum_of_atoms(per_atom: Tensor, atoms: Atoms) -> Tensor:
    """Add up real atoms by graph: `(N, 1)` to `(B, 1)`, in float32 at least."""
    per_atom = per_atom.to(torch.promote_types(per_atom.dtype, torch.float32))
    if atoms.atom_mask is not None:
        per_atom = torch.where(atoms.atom_mask.unsqueeze(-1), per_atom, 0.0)
    return sum_by_index(per_atom, atoms.batch, atoms.num_graphs)
