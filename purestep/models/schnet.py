"""SchNet, an invariant message-passing potential: atoms exchange features through filters that depend on distances alone."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.ranges import FINITE, POSITIVE, at_least, check_numbers, check_whole
from .atoms import NUM_LAYERS, Atoms, cosine_cutoff, distances, edge_vectors, senders_and_receivers, sum_by_index, sum_of_atoms
from .forces import energy_and_forces
from .references import reference_energy_table


class SchNet(nn.Module):
    """Energies and forces of atoms from rotation-invariant features.

    Deviations from the paper: filters are multiplied by a smooth cutoff, and the energy of an atom by `tanh` of its summed edge
    weights, so that an atom without neighbours has exactly its reference energy.

    Args:
        hidden_size: Number of features of an atom.
        num_layers: Number of interaction blocks, from 1 to 1000.
        num_radial: Number of Gaussian basis functions between 0 and the cutoff.
        cutoff: Reach of an edge, Angstrom.
        max_number: Largest atomic number.
        reference_energies: Energy of the free atom by atomic number, eV, added to the energies. None adds nothing: best for training,
            where the data subtracts the references in float64.
        energy_scale: Factor of the learned energy, eV.
        stress: Whether batches with cells get their stress.

    Raises:
        ValueError: If a size is too small for a layer, there are too many blocks, or the cutoff is not positive.
        TypeError: If one is no number, or a size is not whole.

    Reference:
        Schütt et al., "SchNet: A continuous-filter convolutional neural network for modeling quantum interactions", 2017, section 4 and
        figure 2. arXiv:1706.08566
    """

    def __init__(
        self,
        hidden_size: int = 64,
        num_layers: int = 3,
        num_radial: int = 20,
        cutoff: float = 5.0,
        *,
        max_number: int = 100,
        reference_energies: Mapping[int, float] | None = None,
        energy_scale: float = 1.0,
        stress: bool = False,
    ):
        check_whole("SchNet", at_least(2), hidden_size=hidden_size, num_radial=num_radial)
        check_whole("SchNet", at_least(1), max_number=max_number)
        check_whole("SchNet", NUM_LAYERS, num_layers=num_layers)
        check_numbers("SchNet", POSITIVE, cutoff=cutoff)
        check_numbers("SchNet", FINITE, energy_scale=energy_scale)
        super().__init__()
        self.hidden_size, self.num_layers, self.num_radial, self.cutoff = hidden_size, num_layers, num_radial, cutoff
        self.max_number, self.reference_energies, self.energy_scale, self.stress = max_number, reference_energies, energy_scale, stress
        self.embedding = nn.Embedding(max_number + 1, hidden_size)
        self.filters = nn.ModuleList(_mlp(num_radial, hidden_size, hidden_size) for _ in range(num_layers))
        self.inputs = nn.ModuleList(nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(num_layers))
        self.outputs = nn.ModuleList(_mlp(hidden_size, hidden_size, hidden_size) for _ in range(num_layers))
        self.readout = _mlp(hidden_size, hidden_size // 2, 1)
        self.reference_table: Tensor | None
        self.register_buffer("reference_table", reference_energy_table(reference_energies, max_number))

    def forward(self, batch: Atoms) -> dict[str, Tensor]:
        """Potential energy of each graph, `energy` `(B, 1)` in eV, `forces` `(N, 3)` in eV/Angstrom, and maybe `stress`."""
        return energy_and_forces(lambda positions, cell: self.energy(batch, positions, cell), batch, self.parameters(), self.stress)

    def energy(self, atoms: Atoms, positions: Tensor, cell: Tensor | None) -> Tensor:
        """Energies `(B, 1)` with positions and cell in place of the batch's own, eV."""
        sender, receiver = senders_and_receivers(atoms)
        lengths, counts = distances(edge_vectors(atoms, positions, cell), self.cutoff, atoms.edge_mask)
        dtype = self.embedding.weight.dtype
        weight = cosine_cutoff(lengths, counts, self.cutoff).to(dtype).unsqueeze(-1)
        basis = gaussian_basis(lengths, self.num_radial, self.cutoff).to(dtype)

        num_atoms = positions.shape[0]
        features = self.embedding(atoms.numbers)
        for filters, inputs, outputs in zip(self.filters, self.inputs, self.outputs, strict=True):
            message = inputs(features)[sender] * (filters(basis) * weight)
            features = features + outputs(sum_by_index(message, receiver, num_atoms))

        bonded = torch.tanh(sum_by_index(weight, receiver, num_atoms))
        per_atom = self.readout(features) * bonded * self.energy_scale
        if self.reference_table is not None:
            per_atom = per_atom + self.reference_table[atoms.numbers].unsqueeze(-1)
        return sum_of_atoms(per_atom, atoms)


def gaussian_basis(lengths: Tensor, size: int, cutoff: float) -> Tensor:
    """Radial functions `exp(-(r - m)^2 / (2 d^2))` with centres `m` from 0 to the cutoff, `d` apart: `(E,)` to `(E, size)`."""
    spacing = cutoff / (size - 1)
    centres = torch.arange(size, dtype=lengths.dtype, device=lengths.device) * spacing
    return torch.exp(-0.5 * ((lengths.unsqueeze(-1) - centres) / spacing).square())


class ShiftedSoftplus(nn.Module):
    """`log(1 + exp(x)) - log(2)`: smooth, zero at zero (SchNet, section 4.2)."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.softplus(x) - math.log(2.0)


def _mlp(size_in: int, size_hidden: int, size_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size_in, size_hidden), ShiftedSoftplus(), nn.Linear(size_hidden, size_out))
