"""Sharpness-aware minimization: the detour and the way back."""

import pytest
import torch

from purestep.core import tree
from purestep.core.transform import apply_updates, chain
from purestep.optimizers import adam, sgd
from purestep.transforms import normalize, sam

PARAMS = {"p": torch.tensor([3.0, -4.0], dtype=torch.float64)}


def gradient(params, step=0):
    return tree.map(lambda p: p**3, params)


def climber():
    return chain(normalize(), sgd(0.1))


def test_normalize_divides_by_the_joint_norm_and_keeps_zeros():
    updates = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0]), "c": torch.tensor(0.0)}
    found, _ = normalize().update(updates, normalize().init(updates))
    assert {key: float(value) for key, value in found.items()} == pytest.approx({"a": 0.6, "b": 0.8, "c": 0.0})
    zeros = tree.zeros_like(updates)
    assert all(float(value) == 0.0 for value in normalize().update(zeros, normalize().init(zeros))[0].values())


def test_two_calls_step_from_the_start_by_the_gradient_at_the_top():
    transform = sam(sgd(0.01), climber())
    state, params = transform.init(PARAMS), PARAMS
    for _ in range(2):
        updates, state = transform.update(gradient(params), state, params)
        params = apply_updates(params, updates)
    grad = gradient(PARAMS)["p"]
    top = PARAMS["p"] + 0.1 * grad / grad.norm()
    torch.testing.assert_close(params["p"], PARAMS["p"] - 0.01 * top**3, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sync_period", [1, 2, 3])
def test_the_opaque_form_makes_the_same_cycle_in_one_call(sync_period):
    transparent, opaque = (sam(adam(0.1), climber(), sync_period, opaque_mode=mode) for mode in (False, True))
    state, params, other = transparent.init(PARAMS), PARAMS, opaque.init(PARAMS)
    whole = PARAMS
    for _ in range(3):
        for _ in range(sync_period):
            updates, state = transparent.update(gradient(params), state, params)
            params = apply_updates(params, updates)
        updates, other = opaque.update(gradient(whole), other, whole, grad_fn=gradient)
        whole = apply_updates(whole, updates)
    assert int(state.steps_since_sync) == 0
    torch.testing.assert_close(params["p"], whole["p"], rtol=1e-12, atol=0)


def test_the_opaque_form_says_that_it_needs_gradients():
    assert sam(sgd(0.1), climber(), opaque_mode=True).needs == {"grad_fn"}


def test_a_cycle_of_no_calls_is_refused():
    with pytest.raises(ValueError, match="sync_period must be at least 1, got 0"):
        sam(sgd(0.1), climber(), sync_period=0)
