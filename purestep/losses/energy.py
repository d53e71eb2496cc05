"""Losses of the total energy of each graph, eV.

An energy is one number for each graph, `(B, 1)` or `(B,)`; prediction and target have the same of the two.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.loss import LossTerm, Sums
from ..errors import LossError
from .elementwise import huber_loss
from .graphs import atoms_per_graph, graph_mask
from .pairing import DTypePolicy, check_delta, check_dtype_policy, difference, labelled, pair
from .reduction import pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyTerm(LossTerm):
    """Abstract: a mean over graphs of some function of the error in energy.

    Args:
        per_atom: Take the error of the energy per atom, in eV/atom. It needs the number of atoms from the batch.
        ignore_nonfinite: Leave out graphs whose target is NaN or infinite; otherwise such a target makes the loss so.
        dtype_policy: What to do where prediction and target differ in dtype.
    """

    prediction_key: str = "energy"
    target_key: str = "energy"
    per_atom: bool = False
    ignore_nonfinite: bool = False
    dtype_policy: DTypePolicy = "strict"

    weighs_by_atoms: ClassVar[bool] = True
    """Whether `per_atom` also weighs each graph by its number of atoms."""

    def __post_init__(self) -> None:
        check_dtype_policy(self.label, self.dtype_policy)

    @abc.abstractmethod
    def error(self, residual: Tensor) -> Tensor:
        """The function of the error, element by element; 0 at 0."""

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the graphs of the batch."""
        prediction, target = pair(self.label, prediction, target, self.dtype_policy)
        if prediction.ndim not in (1, 2) or prediction.shape[1:] not in ((), (1,)):
            raise LossError(f"{self.label}: energies must be (B, 1) or (B,), one for each graph, got {tuple(prediction.shape)}")
        prediction, target = prediction.flatten(), target.flatten()
        num_graphs = prediction.shape[0]
        valid = labelled(target, graph_mask(self.label, batch, num_graphs), self.ignore_nonfinite)
        if not self.per_atom:
            residual = difference(prediction, target, valid)
            return pool(self.error(residual), valid.to(residual.dtype))
        atoms = atoms_per_graph(self.label, batch, num_graphs)
        valid = valid & (atoms > 0)
        residual = difference(prediction, target, valid)
        atoms = torch.where(valid, atoms, torch.ones_like(atoms)).to(residual.dtype)
        weights = valid.to(residual.dtype) * atoms if self.weighs_by_atoms else valid.to(residual.dtype)
        residual = residual / atoms
        return pool(self.error(residual) * weights, weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyMSELoss(EnergyTerm):
    """Mean squared error of the energy: `sum_i (E_i - e_i)^2 / B`, eV^2.

    With `per_atom=True` graphs weigh as many atoms as they have: `sum_i N_i ((E_i - e_i) / N_i)^2 / sum_i N_i`, (eV/atom)^2.

    Example:
        >>> prediction, target = torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [3.0]])
        >>> EnergyMSELoss()(prediction, target, {}).numerator
        tensor(5.)
    """

    def error(self, residual: Tensor) -> Tensor:
        """`r^2`."""
        return residual.square()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyMAELoss(EnergyTerm):
    """Mean absolute error of the energy per atom: `sum_i |E_i - e_i| / sum_i N_i`, eV/atom.

    With `per_atom=False` it is `sum_i |E_i - e_i| / B`, eV.
    """

    per_atom: bool = True
    ignore_nonfinite: bool = True

    def error(self, residual: Tensor) -> Tensor:
        """`|r|`."""
        return residual.abs()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyHuberLoss(EnergyTerm):
    """Huber loss of the energy per atom, each graph with the same weight.

    `sum_i H((E_i - e_i) / N_i) / B`, where `H(r)` is `r^2 / 2` below `delta` and `delta (|r| - delta / 2)` above; without the
    division by `N_i` if `per_atom=False`.

    Args:
        delta: Where the square ends, in eV/atom (eV).
    """

    per_atom: bool = True
    ignore_nonfinite: bool = True
    delta: float = 0.01

    weighs_by_atoms: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.label, self.delta)

    def error(self, residual: Tensor) -> Tensor:
        """`H(r)`."""
        return huber_loss(residual, delta=self.delta)
