"""Parts that a spec can name and that are awkward to share among ranks: terms that divide by themselves, noise, and worse."""

import dataclasses
import os

import torch
from torch import nn

import purestep as ps
from purestep.models import SchNet


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanOfRank(ps.LossTerm):
    """Squared errors of energies, with a mean taken by hand."""

    prediction_key: str = "energy"
    target_key: str = "energy"

    def __call__(self, prediction, target, batch):
        mean = (prediction - target).square().mean()
        return ps.Sums(mean, torch.ones_like(mean))


class Changed(nn.Module):
    """A potential whose energies are changed at the end."""

    cutoff = 3.0

    def __init__(self):
        super().__init__()
        self.inner = SchNet(hidden_size=8, num_layers=1, num_radial=4, cutoff=self.cutoff)

    def forward(self, batch):
        predictions = self.inner(batch)
        return {**predictions, "energy": self.change(predictions["energy"])}

    def change(self, energy):
        return energy


class Dropping(Changed):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def change(self, energy):
        return self.dropout(energy)


class Normalised(Changed):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def change(self, energy):
        return self.norm(energy)


class Counting(Changed):
    """Keeps the number of frames that it saw last."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frames", torch.zeros(()))

    def change(self, energy):
        if self.training:
            self.frames = torch.full_like(self.frames, len(energy))
        return energy


class Shifted(Changed):
    """One parameter moves all logits alike: it has no effect, and a gradient that is nothing but rounding."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.full((1,), 0.3))

    def change(self, energy):
        places = torch.linspace(-1.0, 1.0, 7, dtype=energy.dtype)
        return (torch.softmax(energy * places + self.shift, -1) * places).sum(-1, keepdim=True) + energy


class Single(Changed):
    """Knows float32 only."""

    def change(self, energy):
        return energy @ torch.ones(1, 1)


class Dying(Changed):
    """Ends rank 1, where there is one."""

    def change(self, energy):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            os._exit(9)
        return energy


class DyingFirst(Changed):
    """Ends every process that computes with it."""

    def change(self, energy):
        os._exit(9)


class Raising(Changed):
    def change(self, energy):
        raise RuntimeError("this model cannot")
