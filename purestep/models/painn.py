"""PaiNN, an equivariant message-passing potential: each atom carries scalars and vectors, messages mix them along the edges."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.ranges import FINITE, POSITIVE, at_least, check_numbers, check_whole
from .atoms import NUM_LAYERS, Atoms, cosine_cutoff, distances, edge_vectors, senders_and_receivers, sum_by_index, sum_of_atoms
from .forces import energy_and_forces
from .references import reference_energy_table


class PaiNN(nn.Module):
    """Energies and forces of atoms from rotation-equivariant features.

    Deviations from the paper, which leave out what has no effect: vectors are zero before the first message, so that message has no
    part that reads them; nothing reads the vectors of the last layer, so they are not updated. And one that changes it: the energy of
    an atom is multiplied by `tanh` of its summed edge weights, so that an atom without neighbours has exactly its reference energy.

    Args:
        hidden_size: Number of scalar features, and of vector features, of an atom.
        num_layers: Number of message and update blocks, from 1 to 1000.
        num_radial: Number of radial basis functions.
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
        Schütt, Unke, Gastegger, "Equivariant message passing for the prediction of tensorial properties and molecular spectra", 2021,
        section 4 and figure 2. arXiv:2102.03150
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
        check_whole("PaiNN", at_least(2), hidden_size=hidden_size)
        check_whole("PaiNN", at_least(1), num_radial=num_radial, max_number=max_number)
        check_whole("PaiNN", NUM_LAYERS, num_layers=num_layers)
        check_numbers("PaiNN", POSITIVE, cutoff=cutoff)
        check_numbers("PaiNN", FINITE, energy_scale=energy_scale)
        super().__init__()
        self.hidden_size, self.num_layers, self.num_radial, self.cutoff = hidden_size, num_layers, num_radial, cutoff
        self.max_number, self.reference_energies, self.energy_scale, self.stress = max_number, reference_energies, energy_scale, stress
        self.embedding = nn.Embedding(max_number + 1, hidden_size)
        parts = [2 if layer == 0 else 3 for layer in range(num_layers)]
        self.filters = nn.ModuleList(nn.Linear(num_radial, part * hidden_size) for part in parts)
        self.messages = nn.ModuleList(_mlp(hidden_size, hidden_size, part * hidden_size) for part in parts)
        self.mixing = nn.ModuleList(nn.Linear(hidden_size, 2 * hidden_size, bias=False) for _ in range(num_layers))
        self.updates = nn.ModuleList(
            _mlp(2 * hidden_size, hidden_size, (3 if layer < num_layers - 1 else 2) * hidden_size) for layer in range(num_layers)
        )
        self.readout = _mlp(hidden_size, hidden_size // 2, 1)
        self.reference_table: Tensor | None
        self.register_buffer("reference_table", reference_energy_table(reference_energies, max_number))

    def forward(self, batch: Atoms) -> dict[str, Tensor]:
        """Potential energy of each graph, `energy` `(B, 1)` in eV, `forces` `(N, 3)` in eV/Angstrom, and maybe `stress`."""
        return energy_and_forces(lambda positions, cell: self.energy(batch, positions, cell), batch, self.parameters(), self.stress)

    def energy(self, atoms: Atoms, positions: Tensor, cell: Tensor | None) -> Tensor:
        """Energies `(B, 1)` with positions and cell in place of the batch's own, eV."""
        sender, receiver = senders_and_receivers(atoms)
        vectors = edge_vectors(atoms, positions, cell)
        lengths, counts = distances(vectors, self.cutoff, atoms.edge_mask)
        dtype = self.embedding.weight.dtype
        weight = cosine_cutoff(lengths, counts, self.cutoff).to(dtype).unsqueeze(-1)
        direction = (vectors / lengths.unsqueeze(-1)).to(dtype).unsqueeze(-1)
        basis = bessel_basis(lengths, self.num_radial, self.cutoff).to(dtype)

        num_atoms = positions.shape[0]
        scalars, vector = self.embedding(atoms.numbers), None
        for layer in range(self.num_layers):
            message = self.messages[layer](scalars)[sender] * (self.filters[layer](basis) * weight)
            parts = message.split(self.hidden_size, dim=-1)
            moved = direction * parts[1].unsqueeze(-2)
            if vector is not None:
                moved = moved + vector[sender] * parts[2].unsqueeze(-2)
            summed = sum_by_index(torch.cat([parts[0].unsqueeze(-2), moved], dim=-2), receiver, num_atoms)
            scalars = scalars + summed[:, 0]
            vector = summed[:, 1:] if vector is None else vector + summed[:, 1:]

            left, right = self.mixing[layer](vector).split(self.hidden_size, dim=-1)
            gates = self.updates[layer](torch.cat([scalars, _smooth_norm(right)], dim=-1)).split(self.hidden_size, dim=-1)
            scalars = scalars + gates[0] + gates[1] * (left * right).sum(-2)
            if layer < self.num_layers - 1:
                vector = vector + gates[2].unsqueeze(-2) * left

        bonded = torch.tanh(sum_by_index(weight, receiver, num_atoms))
        per_atom = self.readout(scalars) * bonded * self.energy_scale
        if self.reference_table is not None:
            per_atom = per_atom + self.reference_table[atoms.numbers].unsqueeze(-1)
        return sum_of_atoms(per_atom, atoms)


def bessel_basis(lengths: Tensor, size: int, cutoff: float) -> Tensor:
    """Radial functions `sin(n pi r / cutoff) / r`, `n = 1 .. size`: `(E,)` to `(E, size)`.

    Reference:
        Gasteiger et al., "Directional message passing for molecular graphs", 2020, equation 7, without its constant.
    """
    order = torch.arange(1, size + 1, dtype=lengths.dtype, device=lengths.device)
    return torch.sin(lengths.unsqueeze(-1) * (order * (math.pi / cutoff))) / lengths.unsqueeze(-1)


def _smooth_norm(vector: Tensor, scale: float = 1e-2) -> Tensor:
    """Length over the Cartesian axis, `sqrt(|v|^2 + scale^2) - scale`: smooth at zero, where symmetric sites and free atoms are."""
    return (vector.square().sum(-2) + scale * scale).sqrt() - scale


def _mlp(size_in: int, size_hidden: int, size_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size_in, size_hidden), nn.SiLU(), nn.Linear(size_hidden, size_out))
