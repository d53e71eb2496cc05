"""Updates too small for the parameter's dtype."""

import pytest
import torch

from purestep.core.transform import apply_updates, chain
from purestep.optimizers import adamw, sgd
from purestep.transforms import kahan_summation, master_weights, skip_nonfinite, stochastic_rounding
from purestep.transforms.precision import round_stochastically


def after_100_updates_of_minus_1e_4(transform, dtype=torch.bfloat16, size=1):
    params = {"weight": torch.ones(size, dtype=dtype)}
    state = transform.init(params)
    for step in range(100):
        grads = {"weight": torch.full((size,), 1e-4)}
        updates, state = transform.update(grads, state, params, key=torch.tensor(1000 + step))
        params = apply_updates(params, updates)
    return params["weight"], state


def test_plain_bfloat16_never_moves():
    weight, _ = after_100_updates_of_minus_1e_4(sgd(1.0))
    assert torch.equal(weight, torch.ones(1, dtype=torch.bfloat16))


def test_master_weights_hold_the_true_value_and_the_parameter_is_its_rounding():
    weight, state = after_100_updates_of_minus_1e_4(master_weights(sgd(1.0)))
    assert float(state.master["weight"]) == pytest.approx(0.99, abs=1e-4)
    assert torch.equal(weight, state.master["weight"].to(torch.bfloat16))


@pytest.mark.parametrize(("compensation_dtype", "tolerance"), [(None, 1e-4), (torch.float32, 1e-7)])
def test_weight_and_compensation_hold_the_true_value(compensation_dtype, tolerance):
    weight, state = after_100_updates_of_minus_1e_4(chain(sgd(1.0), kahan_summation(compensation_dtype)))
    worth = weight.double() + state["kahan_summation"].compensation["weight"].double()
    assert float(worth) == pytest.approx(0.99, abs=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stochastic_rounding_is_right_on_average(dtype):
    weight, _ = after_100_updates_of_minus_1e_4(chain(sgd(1.0), stochastic_rounding()), dtype, size=4096)
    assert float(weight.double().mean()) == pytest.approx(0.99, abs=1e-3)  # standard error 1.4e-4 for bfloat16
    assert len(weight.unique()) > 5


@pytest.mark.parametrize(
    "wrap", [master_weights, lambda inner: chain(inner, kahan_summation()), lambda inner: chain(inner, stochastic_rounding())]
)
def test_float32_leaves_pass_through_bitwise_and_have_no_state(wrap):
    params = {"weight": torch.randn(5, generator=torch.Generator().manual_seed(0))}
    grads = {"weight": torch.full((5,), 0.3)}
    plain, plain_state = adamw(0.1).update(grads, adamw(0.1).init(params), params)
    ours, state = wrap(adamw(0.1)).update(grads, wrap(adamw(0.1)).init(params), params, key=torch.tensor(0))
    assert torch.equal(ours["weight"], plain["weight"])
    assert len(torch.utils._pytree.tree_leaves(state)) == len(torch.utils._pytree.tree_leaves(plain_state))


def test_weight_decay_sees_the_master_weights():
    params = {"weight": torch.ones(1, dtype=torch.bfloat16)}
    transform = master_weights(adamw(1e-3, weight_decay=0.1))
    state = transform.init(params)
    for _ in range(10):
        updates, state = transform.update({"weight": torch.zeros(1)}, state, params)
        params = apply_updates(params, updates)
    assert float(state.master["weight"]) == pytest.approx((1 - 1e-4) ** 10, rel=1e-6)


def test_a_gate_inside_master_weights_holds_the_master_too():
    params = {"weight": torch.ones(1, dtype=torch.bfloat16)}
    transform = master_weights(chain(skip_nonfinite(), sgd(0.5)))
    state = transform.init(params)
    updates, new = transform.update({"weight": torch.tensor([float("nan")])}, state, params)
    assert torch.equal(new.master["weight"], state.master["weight"])
    assert torch.equal(apply_updates(params, updates)["weight"], params["weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_goes_to_a_neighbour_with_the_probability_of_its_nearness(dtype):
    below = torch.tensor([1.5, -2.0, 1e-3, -3e-5]).to(dtype)
    above = torch.nextafter(below.float().to(torch.bfloat16), torch.tensor(9.0, dtype=torch.bfloat16)) if dtype == torch.bfloat16 else None
    above = torch.tensor([1.5 + 2**-10, -2.0 + 2**-10, 0, 0]).to(dtype) if above is None else above
    x = (below.double() + 0.25 * (above.double() - below.double())).float()[:2]
    up = round_stochastically(x, torch.tensor([0.76, 0.76]), dtype)
    down = round_stochastically(x, torch.tensor([0.74, 0.74]), dtype)
    assert torch.equal(up, above[:2])
    assert torch.equal(down, below[:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_that_need_no_rounding_stay(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    chance = torch.rand(1000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(round_stochastically(x.float(), chance, dtype), x)
