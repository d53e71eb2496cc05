"""When reduce_on_plateau lowers the scale."""

import pytest
import torch

from purestep.core.transform import chain
from purestep.optimizers import sgd
from purestep.transforms import reduce_on_plateau


def scales(values, **arguments):
    """The scale of the update at each value."""
    transform = reduce_on_plateau(**arguments)
    params = {"w": torch.zeros(1, dtype=torch.float64)}
    state, found = transform.init(params), []
    for value in values:
        updates, state = transform.update({"w": torch.ones(1, dtype=torch.float64)}, state, params, value=torch.tensor(value))
        found.append(float(updates["w"]))
    return found


def torch_scales(values, **arguments):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **arguments)
    found = []
    for value in values:
        scheduler.step(value)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_optax_counts_patience_so_that_its_last_bad_value_lowers():
    assert scales([1.0, 2.0, 2.0, 2.0, 2.0], factor=0.5, patience=2) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_torch_counts_patience_so_that_the_value_after_it_lowers():
    assert scales([1.0, 2.0, 2.0, 2.0, 2.0], factor=0.5, patience=2, convention="torch") == [1.0, 1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"rtol": 0.1}, {"threshold": 0.1, "threshold_mode": "rel"}),
        ({"rtol": 0.0, "atol": 0.05}, {"threshold": 0.05, "threshold_mode": "abs"}),
        ({"rtol": 0.01, "cooldown": 3, "min_scale": 0.05}, {"threshold": 0.01, "cooldown": 3, "min_lr": 0.05}),
    ],
)
def test_the_convention_of_torch_is_torchs_scheduler(mode, ours, theirs):
    gen = torch.Generator().manual_seed(3)
    values = (1 + torch.rand(200, generator=gen, dtype=torch.float64)).tolist()  # positive: there both margins agree
    expected = torch_scales(values, mode=mode, factor=0.5, patience=2, eps=0.0, **theirs)
    assert scales(values, mode=mode, factor=0.5, patience=2, convention="torch", **ours) == expected


def test_negative_values_improve_when_they_fall():
    falling = [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert scales(falling, factor=0.5, patience=1) == [1.0] * 5
    assert scales([-5.0, -5.0, -5.0], factor=0.5, patience=1) == [1.0, 0.5, 0.25]


def test_larger_is_better_in_the_mode_max():
    assert scales([0.1, 0.2, 0.3, 0.2, 0.1], mode="max", factor=0.5, patience=2) == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_values_are_judged_by_windows():
    values = [1.0, 3.0, 4.0, 2.0, 5.0, 5.0]  # averages 2, 3, 5
    assert scales(values, factor=0.5, patience=1, accumulation_size=2) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_value_that_is_not_a_number_is_a_bad_one():
    assert scales([1.0, float("nan"), 0.5, float("nan")], factor=0.5, patience=1) == [1.0, 0.5, 0.5, 0.25]


def test_driven_by_validation_the_loss_of_the_step_does_nothing():
    transform = reduce_on_plateau(factor=0.5, patience=1, driven_by="validation")
    params = {"w": torch.zeros(1)}
    state = transform.init(params)
    for value in (1.0, 5.0, 5.0):
        _, state = transform.update({"w": torch.ones(1)}, state, params, value=torch.tensor(value))
    assert float(state.scale) == 1.0
    assert float(state.observe(torch.tensor(1.0)).observe(torch.tensor(2.0)).scale) == 0.5
    assert "value" not in transform.needs


def test_the_scale_and_the_best_value_are_metrics():
    state = reduce_on_plateau().init({"w": torch.zeros(1)})
    assert {key: float(value) for key, value in state.metrics.items()} == {"plateau/scale": 1.0, "plateau/best_value": float("inf")}


def test_bfloat16_parameters_do_not_round_the_scale():
    params = {"w": torch.zeros(1, dtype=torch.bfloat16)}
    transform = chain(sgd(1.0), reduce_on_plateau(factor=0.7, patience=1))
    state = transform.init(params)
    for value in (1.0, 1.0):
        _, state = transform.update({"w": torch.ones(1, dtype=torch.bfloat16)}, state, params, value=torch.tensor(value))
    assert float(state["reduce_on_plateau"].scale) == 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": 1.0}, r"factor must lie in \(0, 1\), got 1.0"),
        ({"rtol": 0.0}, "must be positive, got 0 and 0"),
        ({"rtol": 1.5}, r"rtol must lie in \[0, 1\], got 1.5"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"patience": -1, "convention": "torch"}, "patience must be at least 0"),
        ({"mode": "best"}, "unknown mode 'best'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        reduce_on_plateau(**arguments)
