"""A small SevenNet as the package builds it, with batches of molecules and an energy-and-force loss."""

from typing import Any

import torch
from torch import Tensor, nn

from .molecules import Frame, shaken_molecules

CUTOFF = 4.5


def make_model() -> nn.Module:
    """SevenNet with 8 channels and two layers, in float32: its table of species is no buffer, so `to` leaves it as it is."""
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.model_build import build_E3_equivariant_model
    from sevenn.util import chemical_species_preprocess

    chosen = {"channel": 8, "num_convolution_layer": 2, "cutoff": CUTOFF, "shift": 0.0, "scale": 1.0, "conv_denominator": 4.0}
    species = chemical_species_preprocess(["H", "C", "N", "O"])
    torch.manual_seed(0)
    model = build_E3_equivariant_model({**DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG, **species, **chosen})
    model.set_is_batch_data(True)
    return model


def make_batches(count: int) -> list[dict[str, Tensor]]:
    """Batches of the same molecules as the package makes them."""
    from torch_geometric.data import Batch

    batches = [Batch.from_data_list([_graph(frame) for frame in frames]).to_dict() for frames in shaken_molecules(count, references=False)]
    return [{name: x for name, x in batch.items() if isinstance(x, Tensor)} for batch in batches]


def _graph(frame: Frame) -> Any:
    from ase import Atoms
    from sevenn.atom_graph_data import AtomGraphData
    from sevenn.train.dataload import atoms_to_graph

    atoms = Atoms(frame["numbers"], frame["positions"], cell=[30.0] * 3, pbc=True)
    atoms.info.update(y_energy=frame["energy"], y_stress=torch.zeros(6).numpy())
    atoms.arrays["y_force"] = frame["forces"]
    return AtomGraphData.from_numpy_dict(atoms_to_graph(atoms, CUTOFF, transfer_info=False))


def energy_and_force_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared errors of the energy per atom and of the force components."""
    out = model(dict(batch))
    energy = (out["inferred_total_energy"] - batch["total_energy"]) / batch["num_atoms"]
    return energy.square().mean() + 10.0 * (out["inferred_force"] - batch["force_of_atoms"]).square().mean()
