"""For each transform and optimizer of the tables one that can run, with the parameters and extra arguments it is run on."""

import inspect

import torch

from purestep import schedules
from purestep.core import tree
from purestep.core.transform import Gated, apply_updates
from purestep.optimizers import OPTIMIZERS
from purestep.transforms import TRANSFORMS

TABLE = {f"transforms.{name}": make for name, make in TRANSFORMS.items()} | {
    f"optimizers.{name}": make for name, make in OPTIMIZERS.items()
}

# Arguments of those that cannot do without. Every optimizer that wants a learning rate gets LEARNING_RATE.
ARGUMENTS = {
    "transforms.accumulate": {"every": 2},
    "transforms.add_decayed_weights": {"weight_decay": 0.1},
    "transforms.clip": {"max_delta": 0.5},
    "transforms.clip_by_global_norm": {"max_norm": 1.0},
    "transforms.scale": {"step_size": -0.1},
    "transforms.scale_by_learning_rate": {"learning_rate": schedules.linear(0.1, 0.0, 10)},
    "transforms.scale_by_schedule": {"step_size_fn": schedules.linear(-0.1, 0.0, 10)},
    "transforms.trace": {"decay": 0.9, "nesterov": True},
}
LEARNING_RATE = 0.05


def example(name, **changes):
    make = TABLE[name]
    wants_rate = "learning_rate" in inspect.signature(make).parameters and name.startswith("optimizers.")
    return make(**({"learning_rate": LEARNING_RATE} if wants_rate else {}) | ARGUMENTS.get(name, {}) | changes)


def example_params(dtype=torch.float64):
    gen = torch.Generator().manual_seed(1)
    shapes = {"layer": {"weight": (4, 3), "bias": (4,)}, "conv": (2, 3, 2, 2), "scalar": (), "empty": (0, 3)}
    return {
        key: {k: torch.randn(s, generator=gen, dtype=torch.float64).to(dtype) for k, s in value.items()}
        if isinstance(value, dict)
        else torch.randn(value, generator=gen, dtype=torch.float64).to(dtype)
        for key, value in shapes.items()
    }


def quadratic(params):
    """Half the squared distance of every element from 0.3."""
    return sum(((p.double() - 0.3) ** 2).sum() for p in tree.leaves(params)) / 2


def gradient(params):
    return tree.map(lambda p: p - 0.3, params)


def extras(params):
    """What a step may pass: the loss and what it was divided by, and for those that evaluate the loss again, how."""
    return {
        "value": quadratic(params),
        "denominator": torch.tensor(2.0, dtype=torch.float64),
        "key": torch.tensor(5),
        "grad": gradient(params),
        "value_fn": quadratic,
        "grad_fn": lambda params, step=0: gradient(params),
    }


def plain(updates):
    return updates.updates if isinstance(updates, Gated) else updates


def run(transform, params, steps=3, state=None):
    """Parameters and state after some steps down the quadratic."""
    state = transform.init(params) if state is None else state
    for _ in range(steps):
        updates, state = transform.update(gradient(params), state, params, **extras(params))
        params = apply_updates(params, updates)
    return params, state


def assert_bitwise(actual, expected):
    assert tree.structure(actual) == tree.structure(expected)
    for (path, one), other in zip(tree.items(actual), tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype, path
        assert one.device == other.device, path
        assert one.shape == other.shape, path
        assert torch.equal(one.view(-1).contiguous().view(torch.uint8), other.view(-1).contiguous().view(torch.uint8)), path


def assert_close(actual, expected, rtol=1e-10, atol=1e-12):
    assert tree.structure(actual) == tree.structure(expected)
    for (path, one), other in zip(tree.items(actual), tree.leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text, path=path: f"{path}: {text}")
