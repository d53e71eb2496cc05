"""The batch of atoms: many structures in one concatenated layout, as a frozen tree of tensors.

Atoms of all structures ("graphs") follow each other; `batch` names the graph of each atom, `ptr` where each graph begins. Padding is
marked by masks and belongs to a graph of its own. Units are eV, Angstrom, eV/Angstrom, eV/Angstrom^3 (tension positive). How batches
are made is in `collating.py`, their padded form in `padded_form.py`.
"""

import dataclasses
import itertools
from typing import Any, Self

import torch
from torch import Tensor

from ..core import tree


@tree.node
class AtomicBatch:
    """`B` structures with `N` atoms and `E` directed edges in all; what is absent is None.

    Args:
        positions: Cartesian coordinates, `(N, 3)`, Angstrom.
        numbers: Atomic numbers, `(N,)`, int64; 0 for padding.
        batch: Graph of each atom, `(N,)`, int64, ascending.
        ptr: First atom of each graph and the end, `(B + 1,)`, int64.
        atom_mask: True for real atoms, `(N,)`.
        graph_mask: True for real graphs, `(B,)`.
        edge_index: Sender and receiver of each edge, `(2, E)`, int64. The edge's vector points from the receiver to the sender:
            `positions[sender] - positions[receiver] + edge_shift @ cell`.
        edge_shift: Cell vectors to add, `(E, 3)`, integers in the dtype of the positions.
        edge_mask: True for real edges, `(E,)`.
        cell: Cell vectors as rows, `(B, 3, 3)`, Angstrom.
        pbc: Periodic directions, `(B, 3)`, bool.
        energy: `(B, 1)`, eV; NaN where unknown.
        forces: `(N, 3)`, eV/Angstrom; NaN where unknown.
        stress: `(B, 3, 3)`, eV/Angstrom^3, tension positive; NaN where unknown.
        per_atom: Other values by name, `(N, ...)` each; they are read by name like the fields.
        per_graph: Other values by name, `(B, ...)` each.
        per_edge: Other values by name, `(E, ...)` each; only where the frames brought their own edges along.
    """

    positions: Tensor
    numbers: Tensor
    batch: Tensor
    ptr: Tensor
    atom_mask: Tensor | None = None
    graph_mask: Tensor | None = None
    edge_index: Tensor | None = None
    edge_shift: Tensor | None = None
    edge_mask: Tensor | None = None
    cell: Tensor | None = None
    pbc: Tensor | None = None
    energy: Tensor | None = None
    forces: Tensor | None = None
    stress: Tensor | None = None
    per_atom: dict[str, Tensor] | None = None
    per_graph: dict[str, Tensor] | None = None
    per_edge: dict[str, Tensor] | None = None

    @property
    def num_graphs(self) -> int:
        """Graphs, padding included."""
        return self.ptr.shape[-1] - 1

    @property
    def num_nodes_per_graph(self) -> Tensor:
        """Real atoms of each graph, `(B,)`, int64; 0 for padding."""
        counts = self.ptr[1:] - self.ptr[:-1]
        return counts if self.graph_mask is None else counts * self.graph_mask

    def __getitem__(self, key: str) -> Tensor:
        """The field, or the other value, named `key`.

        Raises:
            KeyError: If there is no such name, or the batch does not carry it.
        """
        if key in _FIELDS and (value := getattr(self, key)) is not None:
            return value
        for others in (self.per_atom, self.per_graph, self.per_edge):
            if others is not None and key in others:
                return others[key]
        raise KeyError(f"this batch has no {key!r}; it carries {', '.join(self.keys())}")

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def keys(self) -> list[str]:
        """Names of the fields that are present, and of the other values."""
        others = [key for name in _OTHERS for key in getattr(self, name) or ()]
        return [*(name for name in _FIELDS if getattr(self, name) is not None), *others]

    def to(self, device: torch.device | str | None) -> Self:
        """The same batch on another device."""
        return tree.to_device(self, device)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def cut(self, parts: int) -> list[Self]:
        """Split into `parts` batches of consecutive graphs, as equal in number as they can be.

        Sizes of the parts depend on values in `ptr`, so a step that cuts cannot be captured as it is; `collate_parts` delivers batches
        that are cut already.

        Raises:
            ValueError: If there are fewer graphs than parts.
        """
        if not 1 <= parts <= self.num_graphs:
            raise ValueError(f"cannot cut {self.num_graphs} graphs into {parts} parts")
        share, rest = divmod(self.num_graphs, parts)
        bounds = [number * share + min(number, rest) for number in range(parts + 1)]
        return [self._graphs(first, end) for first, end in itertools.pairwise(bounds)]

    def _graphs(self, first: int, end: int) -> Self:
        atoms = slice(int(self.ptr[first]), int(self.ptr[end]))
        changes: dict[str, Any] = {name: getattr(self, name)[atoms] for name in _PER_ATOM if name in self}
        changes |= {name: getattr(self, name)[first:end] for name in _PER_GRAPH if name in self}
        for name, rows in (("per_atom", atoms), ("per_graph", slice(first, end))):
            if (others := getattr(self, name)) is not None:
                changes[name] = {key: value[rows] for key, value in others.items()}
        if self.edge_index is not None:
            inside = (self.edge_index[0] >= atoms.start) & (self.edge_index[0] < atoms.stop)
            changes |= {name: getattr(self, name)[inside] for name in ("edge_shift", "edge_mask") if name in self}
            changes["edge_index"] = self.edge_index[:, inside] - atoms.start
            if self.per_edge is not None:
                changes["per_edge"] = {key: value[inside] for key, value in self.per_edge.items()}
        return self.replace(**changes, batch=self.batch[atoms] - first, ptr=self.ptr[first : end + 1] - atoms.start)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_text(self[name])}" for name in self.keys())
        return f"AtomicBatch({fields})"


_PER_ATOM = ("positions", "numbers", "atom_mask", "forces")
_PER_GRAPH = ("graph_mask", "cell", "pbc", "energy", "stress")
_OTHERS = ("per_atom", "per_graph", "per_edge")
_FIELDS = tuple(field.name for field in dataclasses.fields(AtomicBatch) if field.name not in _OTHERS)


def _text(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
