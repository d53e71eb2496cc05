"""A small CHGNet on two crystals of four atoms each, with an energy-and-force loss.

CHGNet takes a list of graph objects, which are no trees of tensors: a batch holds their tensors, the forward builds them again.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ATOM_CUTOFF, BOND_CUTOFF = 5.0, 3.0
CELLS = {"NaCl": (5.69, ["Na", "Cl", "Na", "Cl"]), "MgO": (4.26, ["Mg", "O", "Mg", "O"])}
SITES = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.0], [0.0, 0.0, 0.5]])
_OF_A_GRAPH = (
    "atomic_number",
    "atom_frac_coord",
    "atom_graph",
    "neighbor_image",
    "directed2undirected",
    "undirected2directed",
    "bond_graph",
    "lattice",
)


def make_model() -> nn.Module:
    """CHGNet with random weights and two layers of 16 features."""
    from chgnet.model import CHGNet

    torch.manual_seed(0)
    return CHGNet(
        atom_fea_dim=16,
        bond_fea_dim=16,
        angle_fea_dim=16,
        atom_conv_hidden_dim=16,
        bond_conv_hidden_dim=16,
        mlp_hidden_dims=(16, 16),
        n_conv=2,
        atom_graph_cutoff=ATOM_CUTOFF,
        bond_graph_cutoff=BOND_CUTOFF,
    )


def make_batches(count: int) -> list[dict[str, Any]]:
    """Batches of both crystals, shaken anew in each, on the edges of the unshaken ones."""
    from chgnet.graph import CrystalGraphConverter
    from pymatgen.core import Lattice, Structure

    convert = CrystalGraphConverter(atom_graph_cutoff=ATOM_CUTOFF, bond_graph_cutoff=BOND_CUTOFF)
    structures = [Structure(Lattice.cubic(side), species, SITES) for side, species in CELLS.values()]
    graphs = [{name: getattr(convert(one), name).detach() for name in _OF_A_GRAPH} for one in structures]
    gen = torch.Generator().manual_seed(1)
    return [
        {
            "graphs": [{**one, "atom_frac_coord": one["atom_frac_coord"] + 0.01 * torch.randn(4, 3, generator=gen)} for one in graphs],
            "energy": -3.0 + torch.randn(len(graphs), generator=gen),
            "forces": torch.randn(4 * len(graphs), 3, generator=gen),
        }
        for _ in range(count)
    ]


def energy_and_force_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Mean squared errors of the energy per atom, which is what CHGNet predicts, and of the force components."""
    from chgnet.graph import CrystalGraph

    cutoffs = {"atom_graph_cutoff": ATOM_CUTOFF, "bond_graph_cutoff": BOND_CUTOFF}
    # forces are derivatives by the fractional coordinates, which must be leaves that want a gradient
    graphs = [CrystalGraph(**one, **cutoffs) for one in batch["graphs"]]
    for graph in graphs:
        graph.atom_frac_coord.requires_grad_()
    out = model(graphs, task="ef")
    energy = (out["e"] - batch["energy"]).square().mean()
    return energy + 10.0 * (torch.cat(out["f"]) - batch["forces"]).square().mean()
