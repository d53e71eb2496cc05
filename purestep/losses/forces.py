"""Losses of the forces on atoms, eV/Angstrom.

Forces are `(N, 3)` with the atoms of all graphs one after the other, or `(B, Nmax, 3)` padded to the largest graph. Padding and
unlabelled components are in no sum and no count.
"""

import abc
import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..core.loss import LossTerm, Sums
from ..errors import LossError
from .elementwise import huber_loss
from .graphs import dense_atom_mask, graph_of_atoms, padded_atom_mask, require_graphs, sum_by_graph
from .pairing import DTypePolicy, check_delta, check_dtype_policy, difference, labelled, pair
from .reduction import balance, pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceTerm(LossTerm):
    """Abstract: a mean over atoms of some function of the error in force.

    Args:
        normalize_by_atom_count: Take the mean over the labelled components of each graph, then over the graphs that have some, so
            that small graphs count as much as large ones. Otherwise one mean over all labelled components.
        ignore_nonfinite: Leave out components whose target is NaN or infinite; otherwise such a target makes the loss so.
        dtype_policy: What to do where prediction and target differ in dtype.
    """

    prediction_key: str = "forces"
    target_key: str = "forces"
    normalize_by_atom_count: bool = True
    ignore_nonfinite: bool = False
    dtype_policy: DTypePolicy = "strict"

    def __post_init__(self) -> None:
        check_dtype_policy(self.label, self.dtype_policy)

    @abc.abstractmethod
    def sum_components(self, prediction: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Total and count of each atom, both without the last axis."""

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the atoms or graphs of the batch."""
        prediction, target = pair(self.label, prediction, target, self.dtype_policy)
        if prediction.ndim not in (2, 3) or prediction.shape[-1] != 3:
            raise LossError(f"{self.label}: forces must be (N, 3), or padded (B, Nmax, 3), got {tuple(prediction.shape)}")
        if prediction.ndim == 3:
            mask = padded_atom_mask(self.label, batch, *prediction.shape[:2])
            totals, counts = self.sum_components(prediction, target, labelled(target, mask, self.ignore_nonfinite))
            return self._reduce(totals.sum(1), counts.sum(1))
        num_atoms = prediction.shape[0]
        mask = dense_atom_mask(self.label, batch, num_atoms)
        totals, counts = self.sum_components(prediction, target, labelled(target, mask, self.ignore_nonfinite))
        if self.normalize_by_atom_count:
            graphs = require_graphs(self.label, batch, num_atoms, "or give normalize_by_atom_count=False")
        elif (graphs := graph_of_atoms(self.label, batch, num_atoms)) is None:
            return pool(totals, counts)._replace(per_sample=None)
        return self._reduce(sum_by_graph(totals, *graphs), sum_by_graph(counts, *graphs))

    def _reduce(self, totals: Tensor, counts: Tensor) -> Sums:
        return balance(totals, counts) if self.normalize_by_atom_count else pool(totals, counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceComponentTerm(ForceTerm):
    """Abstract: a function of the error of each Cartesian component."""

    @abc.abstractmethod
    def error(self, residual: Tensor) -> Tensor:
        """The function of the error, element by element; 0 at 0."""

    def sum_components(self, prediction: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the labelled components of each atom, and their number."""
        values = self.error(difference(prediction, target, valid))
        return values.sum(-1), valid.to(values.dtype).sum(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceMSELoss(ForceComponentTerm):
    """Mean squared error of the force components, (eV/Angstrom)^2.

    `sum_i [sum_ac (F_iac - f_iac)^2 / 3 N_i] / B`; with `normalize_by_atom_count=False`, `sum_iac (F_iac - f_iac)^2 / sum_i 3 N_i`.
    """

    def error(self, residual: Tensor) -> Tensor:
        """`r^2`."""
        return residual.square()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceMAELoss(ForceComponentTerm):
    """Mean absolute error of the force components: `sum_iac |F_iac - f_iac| / sum_i 3 N_i`, eV/Angstrom."""

    normalize_by_atom_count: bool = False
    ignore_nonfinite: bool = True

    def error(self, residual: Tensor) -> Tensor:
        """`|r|`."""
        return residual.abs()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceHuberLoss(ForceComponentTerm):
    """Huber loss of the force components: `sum_iac H(F_iac - f_iac) / sum_i 3 N_i`.

    `H(r)` is `r^2 / 2` below `delta` and `delta (|r| - delta / 2)` above.

    Args:
        delta: Where the square ends, eV/Angstrom.
    """

    normalize_by_atom_count: bool = False
    ignore_nonfinite: bool = True
    delta: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.label, self.delta)

    def error(self, residual: Tensor) -> Tensor:
        """`H(r)`."""
        return huber_loss(residual, delta=self.delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceL2NormLoss(ForceTerm):
    """Mean length of the error vector: `sum_i [sum_a |F_ia - f_ia| / N_i] / B`, eV/Angstrom.

    An atom with one unlabelled component is left out whole.
    """

    ignore_nonfinite: bool = True

    def sum_components(self, prediction: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Length of the error of each atom, and 1 where it is labelled."""
        whole = valid.all(-1)
        squares = difference(prediction, target, whole[..., None].expand(valid.shape)).square().sum(-1)
        zero = squares == 0  # where the root has no derivative
        lengths = torch.where(zero, torch.zeros_like(squares), torch.where(zero, torch.ones_like(squares), squares).sqrt())
        return lengths, whole.to(lengths.dtype)
