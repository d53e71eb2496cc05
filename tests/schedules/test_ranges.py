"""Every number that a schedule takes is refused, when it is built, where its name says that it cannot be."""

import inspect

import pytest
import torch

from purestep import schedules
from purestep.schedules import SCHEDULES

ARGUMENTS = {
    "cosine_decay": {"init_value": 1.0, "decay_steps": 10},
    "cosine_onecycle": {"transition_steps": 10, "peak_value": 1.0},
    "cosine_restarts": {"init_value": 1.0, "first_cycle_steps": 10},
    "cyclic": {"init_value": 0.1, "peak_value": 1.0, "rise_steps": 10},
    "constant": {"value": 1.0},
    "exponential_decay": {"init_value": 1.0, "transition_steps": 10, "decay_rate": 0.5},
    "in_epochs": {"schedule": schedules.constant(1.0), "steps_per_epoch": 10},
    "in_samples": {"schedule": schedules.constant(1.0), "batch_size": 10},
    "in_tokens": {"schedule": schedules.constant(1.0), "tokens_per_step": 10},
    "inverse_sqrt": {"peak_value": 1.0, "warmup_steps": 10},
    "linear": {"init_value": 1.0, "end_value": 0.0, "transition_steps": 10},
    "linear_onecycle": {"transition_steps": 10, "peak_value": 1.0},
    "onecycle": {"total_steps": 10, "max_value": 1.0},
    "piecewise_constant": {"init_value": 1.0},
    "piecewise_interpolate": {"interpolate_type": "linear", "init_value": 1.0},
    "polynomial": {"init_value": 1.0, "end_value": 0.0, "power": 2.0, "transition_steps": 10},
    "warmup_constant": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 10},
    "warmup_cosine_decay": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 10},
    "warmup_exponential_decay": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "transition_steps": 10, "decay_rate": 0.5},
    "warmup_polynomial_decay": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 10},
    "warmup_stable_decay": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "stable_steps": 5, "decay_steps": 10},
}
INFINITE = float("inf")
NOT_POSITIVE = (0, -1, INFINITE)
NEGATIVE = (-1, INFINITE)
OUTSIDE = {
    "batch_size": NOT_POSITIVE,
    "cycle_factor": (0.5, INFINITE),
    "decay_rate": NEGATIVE,
    "decay_steps": NOT_POSITIVE,
    "div_factor": NOT_POSITIVE,
    "exponent": NOT_POSITIVE,
    "fall_steps": NOT_POSITIVE,
    "final_div_factor": NOT_POSITIVE,
    "first_cycle_steps": NOT_POSITIVE,
    "gamma": NOT_POSITIVE,
    "pct_final": (-0.1, 1.1),
    "pct_start": (-0.1, 1.1),
    "power": NOT_POSITIVE,
    "rise_steps": NOT_POSITIVE,
    "stable_steps": NEGATIVE,
    "steps_per_epoch": NOT_POSITIVE,
    "timescale": NOT_POSITIVE,
    "tokens_per_step": NOT_POSITIVE,
    "total_steps": NOT_POSITIVE,
    "warmup_steps": NEGATIVE,
}
OF_ONE = {
    "linear_onecycle": {"transition_steps": NOT_POSITIVE},
    "cosine_onecycle": {"transition_steps": NOT_POSITIVE},
    "warmup_stable_decay": {"decay_steps": NEGATIVE},  # 0 is no fall, but a drop
}
# Any finite number has a meaning. A schedule of something else than a learning rate may be negative.
ANYWHERE = {
    "alpha": "a part of the value",
    "end_value": "a value",
    "init_value": "a value",
    "max_value": "a value",
    "peak_value": "a value",
    "transition_begin": "negative is 0, as in optax",
    "transition_steps": "without steps it stays where it is, as in optax",
    "value": "a value",
}


def numbers_of(name):
    """The arguments whose annotation admits a number."""
    annotations = {argument: p.annotation for argument, p in inspect.signature(SCHEDULES[name]).parameters.items()}
    return [argument for argument, annotation in annotations.items() if annotation in (int, float, float | None)]


ARGUMENTS_OF_ALL = [(name, argument) for name in sorted(SCHEDULES) for argument in numbers_of(name)]


def assert_refused_by_name(name, argument, values):
    """Refused, and the message names an argument that the caller wrote, of a schedule that has it."""
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^\w+: {argument} must .*, got ") as caught:
            SCHEDULES[name](**ARGUMENTS[name] | {argument: value})
        assert argument in inspect.signature(SCHEDULES[str(caught.value).partition(":")[0]]).parameters


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS_OF_ALL)
def test_every_number_has_a_range(name, argument):
    given = argument in OF_ONE.get(name, {}) or (argument in OUTSIDE) + (argument in ANYWHERE) == 1
    assert given, f"give {argument} numbers in OUTSIDE that it cannot be, or in ANYWHERE the reason why it can be any"


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS_OF_ALL)
def test_a_number_outside_its_range_is_refused_by_name(name, argument):
    assert_refused_by_name(name, argument, OF_ONE.get(name, {}).get(argument, OUTSIDE.get(argument, (INFINITE,))))


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS_OF_ALL)
def test_what_is_no_number_is_refused_by_name(name, argument):
    assert_refused_by_name(name, argument, (float("nan"), "0.5", True, [0.5]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.join([schedules.constant(1.0)] * 2, [float("nan")]), r"join: boundaries\[0\] must be finite, got nan"),
        (lambda: schedules.piecewise_constant(1.0, {3: float("nan")}), r"boundaries_and_scales\[3\] must lie in \[0, inf\), got nan"),
        (
            lambda: schedules.sgdr([{"init_value": 0.0, "peak_value": 1.0, "warmup_steps": -1, "decay_steps": 4}]),
            r"warmup_cosine_decay: warmup_steps must lie in \[0, inf\), got -1",
        ),
    ],
)
def test_numbers_in_other_places_are_refused_too(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tensors_are_not_looked_at():
    never = torch.tensor(-1.0, device="meta")  # has no value that could be read
    assert schedules.cosine_decay(never, 10)(torch.zeros((), device="meta")).device.type == "meta"
