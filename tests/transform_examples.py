"""For each transform and optimizer of the tables one that can run, with the parameters and extra arguments it is run on."""

import inspect

import torch

from purestep import schedules
from purestep.core import tree
from purestep.core.transform import Gated, apply_updates
from purestep.optimizers import OPTIMIZERS, adam, dpsgd, sgd
from purestep.transforms import (
    TRANSFORMS,
    MuonDimensionNumbers,
    add_mean_variance_to_opt,
    average_per_element_updates,
    chain,
    differentially_private_aggregate,
    inject_hyperparams,
    masked,
    measure_with_ema,
    named_chain,
    normalize,
    scale,
    scale_by_muon,
    scale_by_shampoo,
    scale_by_shape,
    scale_by_soap,
    scale_by_zoom_linesearch,
    stateless,
    trace,
)

TABLE = {f"transforms.{name}": make for name, make in TRANSFORMS.items()} | {
    f"optimizers.{name}": make for name, make in OPTIMIZERS.items()
}

LEARNING_RATE = 0.05

# Arguments of those that cannot do without, or that would do nothing. Optimizers get LEARNING_RATE where they want one.
ARGUMENTS = {
    "transforms.accumulate": {"every": 2},
    "transforms.adaptive_grad_clip": {"clipping": 0.1},
    "transforms.add_decayed_weights": {"weight_decay": 0.1},
    "transforms.add_noise": {"eta": 0.01, "gamma": 0.55},
    "transforms.apply_every": {"k": 2},
    "transforms.clip": {"max_delta": 0.5},
    "transforms.clip_by_block_rms": {"threshold": 0.5},
    "transforms.clip_by_global_norm": {"max_norm": 1.0},
    "transforms.clip_by_leaf_norm": {"max_norm": 0.5},
    "transforms.clip_by_percentile": {"percentile": 50.0, "window": 4, "warmup": 1},
    "transforms.conditionally_mask": {"inner": trace(0.9), "should_transform_fn": lambda step: step % 2 == 0},
    "transforms.conditionally_transform": {"inner": trace(0.9), "should_transform_fn": lambda step: step % 2 == 0},
    "transforms.dynamic_loss_scale": {"growth_interval": 2},
    "transforms.ema": {"decay": 0.9},
    "transforms.flatten": {"inner": adam(0.1)},
    # a search and a memory of the usual length are unrolled into traces of minutes
    "optimizers.lbfgs": {"memory_size": 3, "linesearch": scale_by_zoom_linesearch(4, initial_guess_strategy="one")},
    "transforms.scale_by_lbfgs": {"memory_size": 3},
    "transforms.lookahead": {"fast_optimizer": adam(0.1), "sync_period": 2, "slow_step_size": 0.5, "reset_state": True},
    "transforms.mechanize": {"base_optimizer": adam(0.1)},
    "transforms.master_weights": {"inner": adam(0.1)},
    "transforms.layerwise_decay": {"decay": 0.5, "pattern_of_depth": {"layer.*": 0}, "first": ("conv",)},
    "transforms.monitor": {"measures": {"norm": tree.global_norm, "mean_norm": measure_with_ema(tree.global_norm, 0.9)}},
    "transforms.named": {"name": "mine", "transform": adam(0.1)},
    "transforms.sam": {"optimizer": sgd(0.1), "adv_optimizer": chain(normalize(), sgd(0.05))},
    "transforms.scale": {"step_size": -0.1},
    "transforms.scale_by_backtracking_linesearch": {"max_backtracking_steps": 5},
    "transforms.scale_by_factored_rms": {"min_dim_size_to_factor": 2},
    "transforms.scale_by_learning_rate": {"learning_rate": schedules.linear(0.1, 0.0, 10)},
    "transforms.scale_by_madgrad": {"learning_rate": 0.01},
    "transforms.scale_by_relative_step": {"learning_rate": 0.1, "weight_decay": 0.1},
    "transforms.scale_by_rprop": {"learning_rate": 0.1},
    "transforms.scale_by_schedule": {"step_size_fn": schedules.linear(-0.1, 0.0, 10)},
    "transforms.schedule_free": {"base_optimizer": sgd(0.1), "learning_rate": 0.1},
    "transforms.scale_by_zoom_linesearch": {"max_linesearch_steps": 5},
    "transforms.selective_transform": {"optimizer": adam(0.1), "freeze_mask": lambda params: tree.map(lambda p: p.ndim < 2, params)},
    "transforms.skip_large_updates": {"max_squared_norm": 100.0},
    "transforms.skip_spikes": {"window": 4, "warmup": 2, "by": "grad_norm"},
    "transforms.snapshot": {"measure_name": "norm", "measure": tree.global_norm},
    "transforms.split_real_and_imaginary": {"inner": adam(0.1)},
    "transforms.step_and_shrink": {"learning_rate": 0.1},
    "transforms.trace": {"decay": 0.9, "nesterov": True},
    "optimizers.galore": {"rank": 2, "update_proj_gap": 2},
    "transforms.scale_by_galore": {"rank": 2, "update_proj_gap": 2},
    "transforms.scale_by_sophia": {"update_interval": 2},
}
# torch's convolution as a matrix of output channels
DIMENSIONS = {"conv": MuonDimensionNumbers(reduction_axis=(1, 2, 3), output_axis=0)}
# Gradients of two examples, for those that take one gradient of each.
TWO_EXAMPLES = stateless(lambda updates, params: tree.map(lambda u: torch.stack([u, 2 * u]), updates), "two_examples")
# Factories that take more than names and values.
BUILDERS = {
    "transforms.inject_hyperparams": lambda: inject_hyperparams(adam)(0.1, b2=schedules.linear(0.9, 0.99, 10)),
    "transforms.named_chain": lambda: named_chain(("first", trace(0.9)), ("second", scale(-0.1))),
    "transforms.scale_by_muon": lambda: masked(scale_by_muon(weight_dimension_numbers=DIMENSIONS), ["*weight", "conv", "empty"]),
    "transforms.scale_by_shampoo": lambda: masked(scale_by_shampoo(weight_dimension_numbers=DIMENSIONS), ["*weight", "conv", "empty"]),
    "transforms.scale_by_shape": lambda: masked(scale_by_shape(weight_dimension_numbers=DIMENSIONS), ["*weight", "conv", "empty"]),
    "transforms.scale_by_soap": lambda: masked(scale_by_soap(weight_dimension_numbers=DIMENSIONS), ["*weight", "conv", "empty"]),
    "transforms.add_mean_variance_to_opt": lambda: chain(TWO_EXAMPLES, add_mean_variance_to_opt(sgd(0.1))),
    "transforms.average_per_element_updates": lambda: chain(TWO_EXAMPLES, average_per_element_updates()),
    "transforms.differentially_private_aggregate": lambda: chain(TWO_EXAMPLES, differentially_private_aggregate(1.0, 0.1)),
    "optimizers.dpsgd": lambda: chain(TWO_EXAMPLES, dpsgd(LEARNING_RATE, 1.0, 0.1), name="dpsgd"),
}


def example(name, **changes):
    make = TABLE[name]
    if name in BUILDERS:
        return BUILDERS[name]()
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
    leaves = tree.leaves(params) or [torch.zeros(0)]
    return sum(((p.double() - 0.3) ** 2).sum() for p in leaves) / 2


def gradient(params):
    return tree.map(lambda p: p - 0.3, params)


def extras(params):
    """What a step may pass: the loss and what it was divided by, and for those that evaluate the loss again, how."""
    return {
        "value": quadratic(params),
        "obj_fn": quadratic,
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
