"""Two interatomic potentials that train at once: PaiNN (equivariant) and SchNet (invariant).

They are ordinary modules: give them a batch of atoms with a neighbour list and they return energies and forces.
"""

from .forces import energy_and_forces
from .painn import PaiNN
from .schnet import SchNet

__all__ = ["PaiNN", "SchNet", "energy_and_forces"]
