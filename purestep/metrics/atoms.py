"""Errors of energies and forces. The names of results say the unit, and over what the mean is taken.

Padding and unlabelled entries are left out. Forces are `(N, 3)`, or padded `(B, Nmax, 3)` with an `atom_mask` `(B, Nmax)`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.loss import lookup
from ..errors import LossError
from .accumulator import Metric, Sums, number, total, within, zeros

AXES = ("x", "y", "z")


def field(batch: Any, name: str) -> Any:
    """A field of the batch; None where it has no such field."""
    return batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)


def atom_mask(label: str, batch: Any, forces: Tensor) -> Tensor | None:
    """Which atoms are real, in the layout of the forces; None where none is padding.

    Raises:
        LossError: If the mask is of another layout, or padded forces have none.
    """
    mask, graphs, index = field(batch, "atom_mask"), field(batch, "graph_mask"), field(batch, "batch")
    if mask is None and forces.ndim == 3:
        counts = field(batch, "num_nodes_per_graph")
        if counts is None:
            raise LossError(f"{label}: padded forces {tuple(forces.shape)} need atom_mask {tuple(forces.shape[:2])} in the batch")
        mask = torch.arange(forces.shape[1], device=counts.device) < counts[:, None]
    if mask is not None and mask.shape != forces.shape[:-1]:
        raise LossError(f"{label}: atom_mask {tuple(mask.shape)} should be {tuple(forces.shape[:-1])} for forces {tuple(forces.shape)}")
    if graphs is None or (forces.ndim == 2 and index is None):
        return mask
    of_atoms = graphs[:, None] if forces.ndim == 3 else graphs[index]
    return of_atoms if mask is None else mask & of_atoms


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyErrors(Metric):
    """Errors of the energy per atom, each graph with the same weight: `mean_i |E_i - e_i| / N_i`, and the root mean square."""

    prediction_key: str = "energy"
    target_key: str = "energy"

    def empty(self) -> Sums:
        """The sums over no batch."""
        return {"absolute": zeros(), "squares": zeros(), "count": zeros()}

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        errors, valid = self.read_errors(predictions, batch)
        if errors.shape[1:].numel() != 1:
            raise LossError(f"{self.label}: energies must be (B, 1) or (B,), one for each graph, got {tuple(errors.shape)}")
        atoms = self._atoms(batch, errors.shape[0])
        valid = within(valid.flatten(), field(batch, "graph_mask")) & (atoms > 0)
        errors = errors.flatten() / torch.where(valid, atoms, 1)
        return {"absolute": total(errors.abs(), valid), "squares": total(errors.square(), valid), "count": number(valid)}

    def _atoms(self, batch: Any, num_graphs: int) -> Tensor:
        counts, ptr = field(batch, "num_nodes_per_graph"), field(batch, "ptr")
        if counts is None and ptr is None:
            raise LossError(f"{self.label} divides by the number of atoms, so the batch needs num_nodes_per_graph ({num_graphs},) or ptr")
        counts = ptr[1:] - ptr[:-1] if counts is None else counts
        if counts.shape != (num_graphs,):
            raise LossError(f"{self.label}: the batch has {counts.shape[0]} graphs, but the prediction has {num_graphs}")
        return counts

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """`energy/mae_ev_per_atom` and `energy/rmse_ev_per_atom`."""
        name = self.name or self.prediction_key
        return {
            f"{name}/mae_ev_per_atom": sums["absolute"] / sums["count"],
            f"{name}/rmse_ev_per_atom": (sums["squares"] / sums["count"]).sqrt(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceErrors(Metric):
    """Errors of the force components, pooled over all atoms, for each Cartesian axis and for all; and of the force vectors.

    The root mean square over vectors is larger than that over components by the square root of 3; here both have a name.
    """

    prediction_key: str = "forces"
    target_key: str = "forces"

    def empty(self) -> Sums:
        """The sums over no batch."""
        return {
            "absolute": zeros(3),
            "squares": zeros(3),
            "count": zeros(3),
            "lengths": zeros(),
            "length_squares": zeros(),
            "vectors": zeros(),
        }

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        errors, valid = _force_errors(self, predictions, batch)
        whole, squares = valid.all(-1), errors.square()
        lengths = squares.sum(-1)
        return {
            "absolute": torch.where(valid, errors.abs(), 0.0).sum(0),
            "squares": torch.where(valid, squares, 0.0).sum(0),
            "count": valid.double().sum(0),
            "lengths": total(lengths.sqrt(), whole),
            "length_squares": total(lengths, whole),
            "vectors": number(whole),
        }

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """`forces/{mae,rmse}_ev_per_angstrom`, the same with `_x`, `_y`, `_z`, and `forces/vector_{mae,rmse}_ev_per_angstrom`."""
        name = self.name or self.prediction_key
        mae, rmse = sums["absolute"] / sums["count"], (sums["squares"] / sums["count"]).sqrt()
        found = {
            f"{name}/mae_ev_per_angstrom": sums["absolute"].sum() / sums["count"].sum(),
            f"{name}/rmse_ev_per_angstrom": (sums["squares"].sum() / sums["count"].sum()).sqrt(),
            f"{name}/vector_mae_ev_per_angstrom": sums["lengths"] / sums["vectors"],
            f"{name}/vector_rmse_ev_per_angstrom": (sums["length_squares"] / sums["vectors"]).sqrt(),
        }
        for i, axis in enumerate(AXES):
            found |= {f"{name}/mae_{axis}_ev_per_angstrom": mae[i], f"{name}/rmse_{axis}_ev_per_angstrom": rmse[i]}
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceErrorsByElement(Metric):
    """Errors of the force components of the atoms of each element.

    Args:
        elements: Atomic numbers to tell apart; others are left out.
        numbers_key: Under which name the batch holds the atomic numbers, in the layout of the forces without the last axis.
    """

    elements: tuple[int, ...]
    prediction_key: str = "forces"
    target_key: str = "forces"
    numbers_key: str = "numbers"

    def __post_init__(self) -> None:
        if not self.elements or len(set(self.elements)) < len(self.elements):
            raise LossError(f"{self.label}: elements must be atomic numbers, each once, got {self.elements}")

    def empty(self) -> Sums:
        """The sums over no batch."""
        size = len(self.elements)
        return {"absolute": zeros(size), "squares": zeros(size), "count": zeros(size)}

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        errors, valid = _force_errors(self, predictions, batch)
        numbers = lookup(batch, self.numbers_key, self.label, "field of the batch").flatten()
        if len(numbers) != len(errors):
            raise LossError(f"{self.label}: the batch has {len(numbers)} atomic numbers, but forces on {len(errors)} atoms")
        of_element = torch.stack([numbers == element for element in self.elements])[..., None] & valid
        return {
            "absolute": torch.where(of_element, errors.abs(), 0.0).sum((1, 2)),
            "squares": torch.where(of_element, errors.square(), 0.0).sum((1, 2)),
            "count": of_element.double().sum((1, 2)),
        }

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """`forces/mae_ev_per_angstrom/<atomic number>`, and `rmse` likewise."""
        name = self.name or self.prediction_key
        mae, rmse = sums["absolute"] / sums["count"], (sums["squares"] / sums["count"]).sqrt()
        found = {f"{name}/mae_ev_per_angstrom/{element}": mae[i] for i, element in enumerate(self.elements)}
        return found | {f"{name}/rmse_ev_per_angstrom/{element}": rmse[i] for i, element in enumerate(self.elements)}


def _force_errors(metric: Metric, predictions: Mapping[str, Any], batch: Any) -> tuple[Tensor, Tensor]:
    """Errors of all atoms, `(atoms, 3)`, and which are real and labelled."""
    errors, valid = metric.read_errors(predictions, batch)
    if errors.ndim not in (2, 3) or errors.shape[-1] != 3:
        raise LossError(f"{metric.label}: forces must be (N, 3), or padded (B, Nmax, 3), got {tuple(errors.shape)}")
    valid = within(valid, atom_mask(metric.label, batch, errors))
    return torch.where(valid, errors, 0.0).reshape(-1, 3), valid.reshape(-1, 3)
