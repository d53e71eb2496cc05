"""What a batch tells about its graphs: which atoms belong to which, how many there are, which are padding.

A batch is any object or mapping with some of the names `batch` `(N,)`, `ptr` `(B + 1,)`, `num_graphs`, `num_nodes_per_graph` `(B,)`,
`atom_mask` and `graph_mask`. A term asks for what it needs, and says so where it is missing.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import LossError


def read(batch: Any, name: str) -> Any:
    """A field of the batch; None where it has no such field."""
    return batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)


def graph_mask(name: str, batch: Any, num_graphs: int) -> Tensor | None:
    """Which graphs are real, `(B,)`; None where none is padding.

    Raises:
        LossError: If the batch has another number of graphs.
    """
    mask = read(batch, "graph_mask")
    if mask is not None and tuple(mask.shape) != (num_graphs,):
        raise LossError(
            f"{name}: the batch's graph_mask {tuple(mask.shape)} should be ({num_graphs},), one for each graph of the prediction"
        )
    return mask


def atoms_per_graph(name: str, batch: Any, num_graphs: int) -> Tensor:
    """Number of real atoms of each graph, `(B,)`.

    Raises:
        LossError: If the batch cannot tell, or has another number of graphs.
    """
    counts, ptr = read(batch, "num_nodes_per_graph"), read(batch, "ptr")
    if counts is None and ptr is not None:
        counts = ptr[1:] - ptr[:-1]
    if counts is None:
        raise LossError(
            f"{name} divides by the number of atoms, so the batch needs num_nodes_per_graph ({num_graphs},) or ptr; it has {_names(batch)}"
        )
    if counts.ndim == 2:  # a mask of nodes
        counts = counts.sum(1)
    if tuple(counts.shape) != (num_graphs,):
        raise LossError(f"{name}: the batch has {counts.shape[0]} graphs by num_nodes_per_graph, but the prediction has {num_graphs}")
    return counts


def graph_of_atoms(name: str, batch: Any, num_atoms: int) -> tuple[Tensor, int] | None:
    """The graph of each atom, `(N,)`, and the number of graphs; None where the batch knows no graphs.

    Raises:
        LossError: If the batch has another number of atoms, or its number of graphs cannot be told without looking at values.
    """
    index, ptr = read(batch, "batch"), read(batch, "ptr")
    if index is None and ptr is None:
        return None
    num_graphs = ptr.shape[-1] - 1 if ptr is not None else read(batch, "num_graphs")
    if num_graphs is None and (counts := read(batch, "num_nodes_per_graph")) is not None:
        num_graphs = counts.shape[0]
    if num_graphs is None:
        raise LossError(
            f"{name}: the batch has the graph of each atom but not their number; give it ptr or num_graphs; it has {_names(batch)}"
        )
    if index is None:
        index = torch.searchsorted(ptr, torch.arange(num_atoms, device=ptr.device), right=True) - 1
    if tuple(index.shape) != (num_atoms,):
        raise LossError(f"{name}: prediction and target have {num_atoms} atoms, but the batch has {index.shape[0]}")
    return index, num_graphs


def require_graphs(name: str, batch: Any, num_atoms: int, otherwise: str) -> tuple[Tensor, int]:
    """As `graph_of_atoms`, for terms that cannot do without.

    Raises:
        LossError: If the batch knows no graphs; says what to do `otherwise`.
    """
    found = graph_of_atoms(name, batch, num_atoms)
    if found is None:
        raise LossError(
            f"{name} averages over graphs, so the batch needs batch ({num_atoms},) and ptr; it has {_names(batch)}; {otherwise}"
        )
    return found


def sum_by_graph(values: Tensor, index: Tensor, num_graphs: int) -> Tensor:
    """Sum over the atoms of each graph, `(N,)` to `(B,)`."""
    return torch.index_add(values.new_zeros(num_graphs), 0, index, values)


def dense_atom_mask(name: str, batch: Any, num_atoms: int) -> Tensor | None:
    """Which atoms of a concatenated layout are real, `(N,)`; None where none is padding.

    Raises:
        LossError: If the batch has another number of atoms.
    """
    atoms, graphs = read(batch, "atom_mask"), read(batch, "graph_mask")
    if atoms is not None and tuple(atoms.shape) != (num_atoms,):
        raise LossError(f"{name}: the batch's atom_mask {tuple(atoms.shape)} should be ({num_atoms},), one for each atom of the prediction")
    if graphs is None or (found := graph_of_atoms(name, batch, num_atoms)) is None:
        return atoms
    return graphs[found[0]] if atoms is None else atoms & graphs[found[0]]


def padded_atom_mask(name: str, batch: Any, num_graphs: int, width: int) -> Tensor:
    """Which atoms of a padded layout are real, `(B, width)`.

    Raises:
        LossError: If the batch cannot tell, or its sizes differ.
    """
    mask, counts = read(batch, "atom_mask"), read(batch, "num_nodes_per_graph")
    if mask is None or mask.ndim != 2:
        if counts is None and read(batch, "ptr") is None:
            raise LossError(
                f"{name}: forces ({num_graphs}, {width}, 3) are padded, so the batch needs num_nodes_per_graph ({num_graphs},) or "
                f"atom_mask ({num_graphs}, {width}); it has {_names(batch)}"
            )
        mask = counts
        if counts is None or counts.ndim == 1:
            counts = atoms_per_graph(name, batch, num_graphs)
            mask = torch.arange(width, device=counts.device) < counts[:, None]
    if tuple(mask.shape) != (num_graphs, width):
        raise LossError(
            f"{name}: the mask of atoms {tuple(mask.shape)} should be ({num_graphs}, {width}) for forces ({num_graphs}, {width}, 3)"
        )
    graphs = graph_mask(name, batch, num_graphs)
    return mask.bool() if graphs is None else mask.bool() & graphs[:, None]


def _names(batch: Any) -> str:
    names = (
        list(map(str, batch))
        if isinstance(batch, Mapping)
        else [n for n in getattr(batch, "__dataclass_fields__", ()) if read(batch, n) is not None]
    )
    return ", ".join(names) or f"none of these, being a {type(batch).__name__}"
