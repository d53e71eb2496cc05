"""Numbers that a hook cannot have are refused when it is built, by name."""

import numpy as np
import pytest
import torch

from purestep import hooks

NAN = float("nan")
OUTSIDE = [
    (hooks.ema, "decay", (-0.1, 1.0, NAN), 0.5),
    (hooks.ema, "update_every", (0,), 2),
    (hooks.ema, "start_step", (-1,), 0),
    (hooks.warmup_decay, "decay", (-0.1, 1.5, NAN), 1.0),
    (hooks.swa, "update_every", (0,), 2),
    (hooks.polyak, "eta", (-1.0, float("inf"), NAN), 3.0),
    (hooks.input_noise, "std", (-1.0, float("inf"), NAN), 0.0),
    (hooks.loss_statistics, "decay", (-0.1, 1.0, NAN), 0.0),
    (hooks.gradient_noise_scale, "window", (1,), 2),
    (hooks.gradient_noise_scale, "decay", (1.0, NAN), 0.0),
    (hooks.hard_examples, "size", (0, 2**63), 1),
    (lambda num_batches: hooks.every(hooks.ema(), num_batches), "num_batches", (0,), 1),
]


@pytest.mark.parametrize(("make", "argument", "values", "good"), OUTSIDE)
def test_a_number_outside_its_range_is_refused_by_name(make, argument, values, good):
    for value in values:
        with pytest.raises(ValueError, match=rf"^\w+: {argument} must .*, got "):
            make(**{argument: value})


@pytest.mark.parametrize(("make", "argument", "values", "good"), OUTSIDE)
@pytest.mark.parametrize("value", ["0.5", True, None, [0.5], 0.5j, np.array(0.5), torch.zeros(1)], ids=str)
def test_what_is_no_number_is_refused_by_name(make, argument, values, good, value):
    with pytest.raises(TypeError, match=rf"^\w+: {argument} must be .*, got "):
        make(**{argument: value})


@pytest.mark.parametrize(("make", "argument", "values", "good"), OUTSIDE)
def test_a_number_of_numpy_is_taken(make, argument, values, good):
    make(**{argument: np.asarray(good)[()]})
