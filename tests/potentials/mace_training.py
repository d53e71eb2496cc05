"""A small MACE as the package builds it, TorchScript parts included, with batches of shaken molecules and an energy-and-force loss."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .molecules import REFERENCES, Frame, shaken_molecules

CUTOFF = 5.0


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """ScaleShiftMACE with 16 channels and two layers."""
    torch.serialization.add_safe_globals([slice])  # in the constants of the e3nn that MACE is pinned to
    from e3nn import o3
    from mace import modules

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(0)
        return modules.ScaleShiftMACE(
            r_max=CUTOFF,
            num_bessel=8,
            num_polynomial_cutoff=5,
            max_ell=2,
            interaction_cls=modules.RealAgnosticResidualInteractionBlock,
            interaction_cls_first=modules.RealAgnosticResidualInteractionBlock,
            num_interactions=2,
            num_elements=len(REFERENCES),
            hidden_irreps=o3.Irreps("16x0e + 16x1o"),
            MLP_irreps=o3.Irreps("16x0e"),
            gate=F.silu,
            atomic_energies=np.array(list(REFERENCES.values())),
            avg_num_neighbors=4.0,
            atomic_numbers=list(REFERENCES),
            correlation=2,
            atomic_inter_scale=1.0,
            atomic_inter_shift=0.0,
        )
    finally:
        torch.set_default_dtype(before)


def make_batches(count: int, dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    """Batches of the same molecules as the package's own loader would deliver them."""
    from mace.tools import torch_geometric

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return [torch_geometric.Batch.from_data_list([_sample(frame) for frame in frames]).to_dict() for frames in shaken_molecules(count)]
    finally:
        torch.set_default_dtype(before)


def _sample(frame: Frame) -> Any:
    from mace import data
    from mace.tools import AtomicNumberTable

    config = data.Configuration(
        atomic_numbers=frame["numbers"],
        positions=frame["positions"],
        properties={"energy": frame["energy"], "forces": frame["forces"]},
        property_weights={"energy": 1.0, "forces": 1.0},
    )
    return data.AtomicData.from_config(config, z_table=AtomicNumberTable(list(REFERENCES)), cutoff=CUTOFF)


def energy_and_force_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared errors of the energy per atom and of the force components."""
    out = model(batch, training=True)
    atoms = batch["ptr"][1:] - batch["ptr"][:-1]
    return ((out["energy"] - batch["energy"]) / atoms).square().mean() + 10.0 * (out["forces"] - batch["forces"]).square().mean()
