"""Schedule-free: the sequences, the counts, and the point to evaluate at."""

import pytest
import torch

from purestep import schedules
from purestep.core.transform import apply_updates, chain
from purestep.errors import TransformError
from purestep.optimizers import schedule_free_adamw, schedule_free_sgd, sgd
from purestep.transforms import schedule_free, schedule_free_eval_params, skip_nonfinite


def run(transform, steps, start=3.0):
    """Parameters and state on the way down `p^2 / 2`."""
    params = {"p": torch.tensor([start], dtype=torch.float64)}
    state = transform.init(params)
    for _ in range(steps):
        updates, state = transform.update(params, state, params)
        params = apply_updates(params, updates)
    return params, state


def test_the_sequences_are_those_of_the_paper():
    b1, rate = 0.9, 0.3
    x = z = y = 3.0
    for t in range(1, 11):
        z = z - rate * y
        x = (1 - 1 / t) * x + z / t
        y = b1 * x + (1 - b1) * z
    params, state = run(schedule_free(sgd(rate), rate, b1), 10)
    assert float(params["p"]) == pytest.approx(y, rel=1e-12)
    assert float(state.z["p"]) == pytest.approx(z, rel=1e-12)
    assert float(schedule_free_eval_params(state, params)["p"]) == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize(("count_from", "weight"), [(0, 0.0), (1, 0.25**2)])
def test_the_first_weight_is_that_of_the_rate_really_used_or_by_choice_of_the_next(count_from, weight):
    warmup = schedules.warmup_constant(0.0, 1.0, 4)
    _, state = run(schedule_free(sgd(warmup), warmup, count_from=count_from), 1)
    assert float(state.weight_sum) == weight


def test_an_update_without_weight_leaves_the_average_where_it_is():
    warmup = schedules.warmup_constant(0.0, 1.0, 4)
    params, state = run(schedule_free(sgd(warmup), warmup), 1)
    assert float(schedule_free_eval_params(state, params)["p"]) == pytest.approx(3.0, rel=1e-14)


@pytest.mark.parametrize("make", [schedule_free_sgd, schedule_free_adamw])
def test_the_average_approaches_the_minimum(make):
    params, state = run(make(0.5, warmup_steps=5), 300)
    assert abs(float(schedule_free_eval_params(state, params)["p"])) < 0.1


def test_eval_params_finds_the_part_inside_a_chain():
    params, state = run(chain(skip_nonfinite(), schedule_free_sgd(0.1)), 3)
    alone, own = run(schedule_free_sgd(0.1), 3)
    assert torch.equal(schedule_free_eval_params(state, params)["p"], schedule_free_eval_params(own, alone)["p"])


def test_eval_params_refuses_a_state_without_such_a_part():
    params = {"p": torch.zeros(1)}
    with pytest.raises(TransformError, match="this has 0"):
        schedule_free_eval_params(sgd(0.1).init(params), params)


def test_the_average_cannot_be_left_out():
    with pytest.raises(ValueError, match=r"b1 must lie in \(0, 1\]"):
        schedule_free(sgd(0.1), 0.1, b1=0.0)


def test_a_gate_inside_is_refused():
    with pytest.raises(TransformError, match="put gates before it"):
        run(schedule_free(chain(skip_nonfinite(), sgd(0.1)), 0.1), 1)


def test_warmup_and_a_schedule_exclude_each_other():
    with pytest.raises(ValueError, match="give warmup_steps with a number"):
        schedule_free_sgd(schedules.constant(0.1), warmup_steps=3)
