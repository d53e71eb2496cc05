"""Every number that a transform or an optimizer takes is refused, when it is built, where its name says that it cannot be."""

import inspect
import types
import typing
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from purestep import schedules
from purestep.core import tree
from purestep.optimizers import adam, adamw, dadapt_adamw, prodigy, sgd
from purestep.testing import assert_trees_equal
from purestep.transforms import inject_hyperparams, measure_with_ema, scale_by_dog, trace
from tests.transform_examples import ARGUMENTS, LEARNING_RATE, TABLE, example_params

NAN = float("nan")
# Arguments that those cannot do without which the examples build in another way.
REQUIRED = {
    "transforms.add_mean_variance_to_opt": {"opt": sgd(0.1)},
    "transforms.differentially_private_aggregate": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1},
    "optimizers.dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1},
}
NUMBERS_OF_ITS_OWN = {"transforms.inject_hyperparams", "transforms.named_chain"}  # none: they take what other factories take

DECAYS = (-0.1, 1.0, 1.5)
NEGATIVE = (-1e-8, -1.0, float("inf"))
NOT_POSITIVE = (0.0, -1.0)
FEWER_THAN_ONE = (0, -1)
OUTSIDE = {
    "accumulation_size": FEWER_THAN_ONE,
    "adam_b1": DECAYS,
    "adam_b2": DECAYS,
    "adam_eps_root": NEGATIVE,
    "adam_weight_decay": NEGATIVE,
    "approx_dec_rtol": NEGATIVE,
    "atol": NEGATIVE,
    "b1": DECAYS,
    "b2": DECAYS,
    "b3": DECAYS,
    "backoff_factor": (0.0, 1.0, 2.0),
    "beta": DECAYS,
    "beta2_decay": (0.8,),
    "beta3": DECAYS,
    "clip_threshold": NOT_POSITIVE,
    "clipping": (-1.0,),
    "clipping_threshold": NOT_POSITIVE,
    "consistent_rms": NOT_POSITIVE,
    "cooldown": (-1,),
    "count_from": (-1,),
    "curv_rtol": (-0.1, 1.5),
    "dampening": (-0.1, 1.5),
    "decay": DECAYS,
    "decay_rate": NEGATIVE,
    "decrease_factor": (0.0, 1.0, 2.0),
    "ema_decay": DECAYS,
    "eps": NEGATIVE,
    "eps1": NEGATIVE,
    "eps2": NEGATIVE,
    "eps_root": NEGATIVE,
    "epsilon": NEGATIVE,
    "estim_lr0": NOT_POSITIVE,
    "estim_lr_coef": NOT_POSITIVE,
    "eta": NEGATIVE,
    "eta_minus": (0.0, 1.0, 2.0),
    "eta_plus": (0.5, 1.0),
    "every": FEWER_THAN_ONE,
    "factor": (0.0, 1.0, 2.0),
    "gamma": (-1.0,),
    "growth_factor": (0.5, 1.0),
    "growth_interval": FEWER_THAN_ONE,
    "increase_factor": NOT_POSITIVE,
    "init_estim_sq_dist": NOT_POSITIVE,
    "initial_accumulator_value": NEGATIVE,
    "initial_scale": (-1.0,),
    "k": FEWER_THAN_ONE,
    "l2_norm_clip": NOT_POSITIVE,
    "max_backtracking_steps": (-1,),
    "max_consecutive": FEWER_THAN_ONE,
    "max_delta": (-1.0,),
    "max_learning_rate": NOT_POSITIVE,
    "max_linesearch_steps": FEWER_THAN_ONE,
    "max_norm": (-1.0,),
    "max_precond_dim": (-1,),
    "max_scale": NOT_POSITIVE,
    "max_squared_norm": (-1.0,),
    "max_step_size": NOT_POSITIVE,
    "memory_size": FEWER_THAN_ONE,
    "min_dim_size_to_factor": (-1,),
    "min_norm": NEGATIVE,
    "min_relative_deviation": NEGATIVE,
    "min_scale": NEGATIVE,
    "min_step_size": NEGATIVE,
    "momentum": DECAYS,
    "momentum_decay": NEGATIVE,
    "noise_multiplier": NEGATIVE,
    "ns_steps": FEWER_THAN_ONE,
    "num_betas": FEWER_THAN_ONE,
    "patience": FEWER_THAN_ONE,
    "percentile": (0.0, 101.0),
    "rank": FEWER_THAN_ONE,
    "reps_rel": NOT_POSITIVE,
    "rho": DECAYS,
    "rtol": NEGATIVE,
    "s_init": NOT_POSITIVE,
    "shampoo_beta": DECAYS,
    "slope_rtol": (-0.1, 1.5),
    "slow_step_size": (0.0, 1.5),
    "smooth_beta": NEGATIVE,
    "stepsize_precision": NEGATIVE,
    "sync_period": FEWER_THAN_ONE,
    "tol": NEGATIVE,
    "trust_coefficient": NEGATIVE,
    "update_interval": FEWER_THAN_ONE,
    "update_proj_gap": FEWER_THAN_ONE,
    "warmup": FEWER_THAN_ONE,
    "warmup_steps": (-1,),
    "weight_decay": NEGATIVE,
    "weight_decay_rate": NEGATIVE,
    "weight_lr_power": NEGATIVE,
    "window": FEWER_THAN_ONE,
}
# Where the name has another range.
OF_ONE = {
    "transforms.clip_by_block_rms": {"threshold": (-1.0,)},
    "transforms.layerwise_decay": {"decay": (0.0, 1.5)},
    "transforms.scale_by_sm3": {"b2": (-0.1, 1.5)},  # 1 sums squares
    "transforms.schedule_free": {"b1": (0.0, 1.5)},  # 1 takes gradients at the average
    "optimizers.schedule_free_adamw": {"b1": (0.0, 1.5)},
    "optimizers.schedule_free_sgd": {"b1": (0.0, 1.5)},
    "transforms.skip_spikes": {"threshold": NOT_POSITIVE},
    "transforms.scale_by_rprop": {"learning_rate": NOT_POSITIVE},  # a size of steps, not a factor
    "optimizers.rprop": {"learning_rate": NOT_POSITIVE},
    "transforms.scale_by_optimistic_gradient": {"beta": (float("inf"),)},  # a weight, not a decay
    "optimizers.optimistic_gradient_descent": {"beta": (float("inf"),)},
    "optimizers.optimistic_adam_v2": {"beta": (float("inf"),)},
    "optimizers.optimistic_adam": {"learning_rate": NOT_POSITIVE},  # which `optimism` is divided by
    "transforms.scale_by_cocob": {"alpha": NEGATIVE},
    "optimizers.cocob": {"alpha": NEGATIVE},
}
# Any finite number has a meaning.
ANYWHERE = {
    "adam_learning_rate": "as learning_rate",
    "alpha": "a weight; its sign is the caller's",
    "decay_offset": "may lie before the first update",
    "f_min": "losses may be negative",
    "global_scale": "a factor",
    "key": "any whole number starts a stream",
    "learning_rate": "negative climbs, as in optax",
    "lower_bound": "losses may be negative",
    "optimism": "its sign is the caller's",
    "scale": "a factor",
    "scale_factor": "a factor",
    "scaling": "a factor",
    "step_offset": "may lie before the first update",
    "step_size": "a factor, and negative downhill",
    "threshold": "degrees of freedom",
}


def numbers_of(name):
    """The arguments whose annotation admits a number; an axis is none."""
    if name in NUMBERS_OF_ITS_OWN:
        return []
    annotations = {argument: p.annotation for argument, p in inspect.signature(TABLE[name]).parameters.items()}
    kinds = {k: typing.get_args(a) if isinstance(a, types.UnionType) else (a,) for k, a in annotations.items()}
    return [argument for argument, options in kinds.items() if (int in options or float in options) and "axis" not in argument]


def build(name, **changes):
    required = REQUIRED.get(name, {}) | ARGUMENTS.get(name, {})
    rate = {"learning_rate": LEARNING_RATE} if "learning_rate" in inspect.signature(TABLE[name]).parameters else {}
    return TABLE[name](**rate | required | changes)


ARGUMENTS_OF_ALL = [(name, argument) for name in sorted(TABLE) for argument in numbers_of(name)]
# scale_by_learning_rate(None) hands updates on as they are, as in optax.
NEVER_NONE = [
    (name, argument)
    for name, argument in ARGUMENTS_OF_ALL
    if argument != "learning_rate" and type(None) not in typing.get_args(inspect.signature(TABLE[name]).parameters[argument].annotation)
]


def assert_refused_by_name(name, argument, values):
    """Refused, and the message names an argument that the caller wrote, of a function that has it."""
    makers = {key.partition(".")[2]: make for key, make in TABLE.items()}
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^\w+: {argument} must .*, got ") as caught:
            build(name, **{argument: value})
        assert argument in inspect.signature(makers[str(caught.value).partition(":")[0]]).parameters


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS_OF_ALL)
def test_every_number_has_a_range(name, argument):
    given = argument in OF_ONE.get(name, {}) or (argument in OUTSIDE) + (argument in ANYWHERE) == 1
    assert given, f"give {argument} numbers in OUTSIDE that it cannot be, or in ANYWHERE the reason why it can be any"


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name, argument in ARGUMENTS_OF_ALL if argument != "key"])
def test_a_number_outside_its_range_is_refused_by_name(name, argument):
    assert_refused_by_name(name, argument, OF_ONE.get(name, {}).get(argument, OUTSIDE.get(argument, (float("inf"),))))


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS_OF_ALL)
def test_what_is_no_number_is_refused_by_name(name, argument):
    assert_refused_by_name(name, argument, (NAN, "0.5", True, [0.5]))


@pytest.mark.parametrize(("name", "argument"), NEVER_NONE)
def test_an_argument_that_cannot_be_left_out_is_refused_as_none(name, argument):
    assert_refused_by_name(name, argument, (None,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prodigy(betas=(0.9, 1.5)), r"prodigy: betas must lie in \[0, 1\), got 1.5"),
        (lambda: dadapt_adamw(betas=(NAN, 0.9)), r"dadapt_adamw: betas must lie in \[0, 1\), got nan"),
        (lambda: scale_by_dog(("distance", -1.0)), r"scale_by_dog: init_step must lie in \(0, inf\), got -1.0"),
        (lambda: measure_with_ema(torch.sum, 1.5), r"measure_with_ema: decay must lie in \[0, 1\), got 1.5"),
        (lambda: inject_hyperparams(adam)(0.1, b1=1.5), r"scale_by_adam: b1 must lie in \[0, 1\), got 1.5"),
    ],
)
def test_numbers_in_other_places_are_refused_too(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_where_a_number_belongs_is_refused_with_the_way_to_have_it():
    with pytest.raises(TypeError, match=r"scale_by_adam: b2 must be a number, got .*; inject_hyperparams\(\.\.\.\) drives it"):
        adam(0.1, b2=schedules.linear(0.9, 0.99, 10))


def test_tensors_and_schedules_are_not_looked_at():
    never = torch.tensor(2.0, device="meta")  # has no value that could be read
    assert trace(never).name == "trace"
    assert adamw(never, b1=never, weight_decay=lambda count: -count).name == "adamw"
    injected = inject_hyperparams(adam)(0.1, b2=schedules.linear(0.9, 0.99, 10))
    assert isinstance(injected.init(example_params()).hyperparams["b2"].value, Tensor)


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name, argument in ARGUMENTS_OF_ALL if argument != "learning_rate"])
def test_what_no_tensor_can_be_computed_with_is_refused_by_name(name, argument):
    for value in (Fraction(1, 2), 10**400, -(10**400), torch.ones(1), torch.tensor(True), torch.tensor(0.5j), np.array(0.5)):
        with pytest.raises((ValueError, TypeError), match=rf"^\w+: {argument} must .*, got "):
            build(name, **{argument: value})


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(name for name in TABLE if "learning_rate" in inspect.signature(TABLE[name]).parameters))
def test_a_learning_rate_of_numpy_is_the_number_that_it_is(name, kind):
    rate = kind(0.0625)
    params = example_params()
    made, expected = (build(name, learning_rate=number).init(params) for number in (rate, float(rate)))
    assert_trees_equal(made, expected)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("make", [sgd, adam, adamw])
def test_numbers_of_numpy_are_computed_with_as_numbers_of_python(make, kind):
    numbers = {"momentum": 0.5} if make is sgd else {"b1": 0.5, "b2": 0.75, "eps": 0.125}
    params = example_params()
    grads = tree.map(torch.ones_like, params)
    updates = []
    for as_kind in (kind, float):
        optimizer = make(as_kind(0.5), **{key: as_kind(value) for key, value in numbers.items()})
        updates.append(optimizer.update(grads, optimizer.init(params), params))
    assert_trees_equal(*updates)
