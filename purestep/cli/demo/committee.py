"""Several potentials as one: each learns by itself, together they predict their mean, which errs less on what none of them has seen."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...core.loss import ComposedLoss
from ...losses import EnergyMAELoss, ForceL2NormLoss
from ...models import PaiNN


class Committee(nn.Module):
    """Potentials of one shape with different weights.

    It returns the means as `energy` `(B, 1)`, eV, and `forces` `(N, 3)`, eV/Angstrom, and what each member says as `energy_0`,
    `forces_0`, ...

    Args:
        num_members: How many.
        settings: Arguments of `PaiNN`.
    """

    def __init__(self, num_members: int, settings: Mapping[str, Any]):
        super().__init__()
        self.members = nn.ModuleList(PaiNN(**settings) for _ in range(num_members))

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Predict, each member in turn."""
        outputs = [member(batch) for member in self.members]
        each = {f"{key}_{number}": output[key] for number, output in enumerate(outputs) for key in ("energy", "forces")}
        return {key: torch.stack([output[key] for output in outputs]).mean(0) for key in ("energy", "forces")} | each


def committee_loss(num_members: int) -> ComposedLoss:
    """Mean over the members of the errors of their own predictions.

    Lengths of errors rather than their squares: few frames are far from equilibrium, and squares would be about those.
    """
    return sum(_member_loss(number) for number in range(num_members))  # type: ignore[return-value]  # more than none of them


def _member_loss(number: int) -> ComposedLoss:
    energy = EnergyMAELoss(prediction_key=f"energy_{number}", name=f"energy_{number}")
    return energy + ForceL2NormLoss(prediction_key=f"forces_{number}", name=f"forces_{number}", normalize_by_atom_count=False)
