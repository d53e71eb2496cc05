"""For each hook of the table one that can run, with the loss and the batch it is run on."""

import torch

from purestep.core import tree
from purestep.core.loss import Sums
from purestep.hooks import HOOKS, every
from tests.examples_of_models import molecules

ARGUMENTS = {
    "ema": {"decay": 0.9, "update_every": 2, "start_step": 1, "debias": True},
    "input_noise": {"std": 0.1, "fields": "x"},
    "penalty": {"fn": lambda params: 0.1 * sum(leaf.square().sum() for leaf in tree.leaves(params))},
    "elastic_weight_consolidation": {"strength": 0.5, "fisher": {"layer.bias": torch.tensor([1.0, 2.0], dtype=torch.float64)}},
    "gradient_noise_scale": {"window": 2},
}


def distances_to_origin(params, batch):
    """Not invariant under rotation: each axis has its own weight."""
    error = (batch.positions @ params["layer"]["weight"].T + params["layer"]["bias"]).square() @ batch.forces[:2].abs().sum(-1)
    return Sums(error.sum(), torch.full_like(error.sum(), error.shape[0]), error)


CASES = {"random_rotation": {"loss_fn": distances_to_origin, "batch": molecules()}}


def example(name):
    if name.startswith("every."):
        return every(example(name.removeprefix("every.")), 2)
    return HOOKS[name](**ARGUMENTS.get(name, {}))


NAMES = [*sorted(HOOKS), "every.ema", "every.penalty"]
