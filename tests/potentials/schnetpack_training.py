"""A small PaiNN of SchNetPack, with batches from its own converter and an energy-and-force loss."""

from typing import TypeVar

import torch
import torch.utils.data.dataloader
from torch import Tensor, nn

from .molecules import shaken_molecules

CUTOFF = 5.0


def make_importable() -> None:
    """Give torch back a type variable that newer versions have dropped, and that schnetpack 2.1.1 imports from there."""
    if not hasattr(torch.utils.data.dataloader, "T_co"):
        torch.utils.data.dataloader.T_co = TypeVar("T_co", covariant=True)


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """PaiNN with 32 features and three layers; energies are sums of atoms, forces their gradient."""
    make_importable()
    from schnetpack import atomistic, representation
    from schnetpack.model import NeuralNetworkPotential
    from schnetpack.nn import CosineCutoff, GaussianRBF

    torch.manual_seed(0)
    body = representation.PaiNN(
        n_atom_basis=32, n_interactions=3, radial_basis=GaussianRBF(n_rbf=20, cutoff=CUTOFF), cutoff_fn=CosineCutoff(CUTOFF)
    )
    heads = [atomistic.Atomwise(n_in=32, output_key="energy"), atomistic.Forces(energy_key="energy", force_key="forces")]
    return NeuralNetworkPotential(body, input_modules=[atomistic.PairwiseDistances()], output_modules=heads).to(dtype)


def make_batches(count: int, dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    """Batches of the same molecules as the package's converter makes them, with labels."""
    make_importable()
    from ase import Atoms
    from schnetpack.interfaces import AtomsConverter
    from schnetpack.transform import ASENeighborList

    convert = AtomsConverter(neighbor_list=ASENeighborList(cutoff=CUTOFF), device="cpu", dtype=dtype)
    batches = []
    for frames in shaken_molecules(count, references=False):
        batch = convert([Atoms(frame["numbers"], frame["positions"]) for frame in frames])
        batch["energy"] = torch.tensor([frame["energy"] for frame in frames], dtype=dtype)
        batch["forces"] = torch.cat([torch.tensor(frame["forces"], dtype=dtype) for frame in frames])
        batches.append(batch)
    return batches


def energy_and_force_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared errors of the energy per atom and of the force components."""
    energy, forces = batch["energy"], batch["forces"]
    out = model({name: x for name, x in batch.items() if name not in ("energy", "forces")})
    return ((out["energy"] - energy) / batch["_n_atoms"]).square().mean() + 10.0 * (out["forces"] - forces).square().mean()
