"""Small models, batches and trainings that the tests of the step share; everything in float64."""

import numpy as np
import torch
from torch import nn

import purestep as ps
from purestep.data import collate, prepare
from purestep.models import PaiNN, SchNet

WIDTH = 4


class Net(nn.Module):
    """BatchNorm, Dropout, a weight used by two layers, and a module used under two names."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.25)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first
        self.decoder = nn.Linear(WIDTH, WIDTH, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        hidden = self.dropout(self.norm(self.encoder(x)).tanh())
        return self.decoder(self.second(self.first(hidden).tanh()))


class Plain(nn.Module):
    """A multilayer perceptron whose loss is a mean of independent samples."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 6)
        self.out = nn.Linear(6, WIDTH)

    def forward(self, x):
        return self.out(self.hidden(x).tanh())


def seeded(make, *args, seed=0, **kwargs):
    """A module in float64 whose weights do not depend on the global generator, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **kwargs).double()


def forward(model, batch):
    return {"y": model(batch["x"])}


def mean_squared_error(**changes):
    return ps.MSELoss(prediction_key="y", target_key="y", **changes)


def batches(count, size=8, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [{key: torch.randn(size, WIDTH, generator=gen, dtype=torch.float64) for key in ("x", "y")} for _ in range(count)]


def poisoned(batch):
    """The batch with one NaN among its inputs."""
    x = batch["x"].clone()
    x[1, 2] = float("nan")
    return {**batch, "x": x}


def training(model=None, optimizer=None, **changes):
    """A training of `Net` with AdamW, or of another model, by mean squared error."""
    options = {"loss": mean_squared_error(), "forward": forward} | changes
    return ps.Training(seeded(Net) if model is None else model, optimizer=optimizer or ps.adamw(1e-2), **options)


def run(step, state, batches):
    """The state and the metrics after these batches."""
    metrics = {}
    for batch in batches:
        state, metrics = step(state, batch)
    return state, metrics


def stacked(states):
    """One tree whose leaves have a first axis over the states."""
    return ps.tree.map(lambda *leaves: torch.stack(leaves), *states)


def member(tree, number):
    return ps.tree.map(lambda leaf: leaf[number], tree)


def values(tree, dtype=torch.float64):
    """Floating-point leaves of a tree in one dtype, so that runs in different precision can be compared."""
    return ps.tree.map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


POTENTIALS = {"painn": PaiNN, "schnet": SchNet}


def potential(name):
    return seeded(POTENTIALS[name], hidden_size=6, num_layers=2, num_radial=4, cutoff=3.0, max_number=9, seed=1)


def molecules(counts=(4, 3), seed=0):
    """A batch of random molecules with random labels and edges within 3 Angstrom."""
    gen = np.random.default_rng(seed)
    frames = [
        {
            "numbers": gen.choice([1, 6, 7, 8], count),
            "positions": gen.normal(size=(count, 3)) * 1.2,
            "energy": gen.normal(),
            "forces": gen.normal(size=(count, 3)),
        }
        for count in counts
    ]
    return collate([prepare(frame, 3.0, dtype=np.float64) for frame in frames])


def potential_training(name, **changes):
    """Energies and forces; `forces` come from a derivative inside the model, so that the step differentiates twice."""
    loss = 1.0 * ps.EnergyMSELoss() + 10.0 * ps.ForceMSELoss()
    return ps.Training(potential(name), **{"loss": loss, "optimizer": ps.adamw(1e-2)} | changes)
