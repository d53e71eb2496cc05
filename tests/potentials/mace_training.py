"""A small MACE as the package builds it, TorchScript parts included, with batches of shaken molecules and an energy-and-force loss."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8}
REFERENCES = {1: -13.0, 6: -1029.0, 7: -1484.0, 8: -2042.0}
MOLECULES = {
    "water": ("OHH", [[0.0, 0.0, 0.12], [0.0, 0.76, -0.48], [0.0, -0.76, -0.48]]),
    "ammonia": ("NHHH", [[0.0, 0.0, 0.12], [0.0, 0.94, -0.27], [0.81, -0.47, -0.27], [-0.81, -0.47, -0.27]]),
    "methanol": ("COHHHH", [[0, 0.66, 0], [0, -0.76, 0], [-1.09, 0.97, 0], [0.88, -1.05, 0], [0.44, 1.08, 0.89], [0.44, 1.08, -0.89]]),
    "methane": ("CHHHH", [[0.0, 0.0, 0.0], [0.63, 0.63, 0.63], [-0.63, -0.63, 0.63], [0.63, -0.63, -0.63], [-0.63, 0.63, -0.63]]),
}
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
    """Batches of the same four molecules, shaken anew in each, as the package's own loader would deliver them."""
    from mace.tools import torch_geometric

    before, gen = torch.get_default_dtype(), np.random.default_rng(1)
    torch.set_default_dtype(dtype)
    try:
        shaken = [[_sample(*molecule, gen) for molecule in MOLECULES.values()] for _ in range(count)]
        return [torch_geometric.Batch.from_data_list(samples).to_dict() for samples in shaken]
    finally:
        torch.set_default_dtype(before)


def _sample(symbols: str, positions: list[list[float]], gen: np.random.Generator) -> Any:
    from mace import data
    from mace.tools import AtomicNumberTable

    numbers = np.array([NUMBERS[symbol] for symbol in symbols])
    config = data.Configuration(
        atomic_numbers=numbers,
        positions=np.array(positions) + gen.normal(scale=0.03, size=(len(numbers), 3)),
        properties={
            "energy": float(sum(REFERENCES[number] for number in numbers)) - 4.0 + gen.normal(),
            "forces": gen.normal(size=(len(numbers), 3)),
        },
        property_weights={"energy": 1.0, "forces": 1.0},
    )
    return data.AtomicData.from_config(config, z_table=AtomicNumberTable(list(REFERENCES)), cutoff=CUTOFF)


def energy_and_force_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared errors of the energy per atom and of the force components."""
    out = model(batch, training=True)
    atoms = batch["ptr"][1:] - batch["ptr"][:-1]
    return ((out["energy"] - batch["energy"]) / atoms).square().mean() + 10.0 * (out["forces"] - batch["forces"]).square().mean()
