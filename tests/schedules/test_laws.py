"""What must hold for every schedule in the table."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from purestep import schedules
from purestep.schedules import SCHEDULES

# For each schedule one that runs over `total` counts.
EXAMPLES = {
    "constant": lambda total: schedules.constant(0.3),
    "cosine_decay": lambda total: schedules.cosine_decay(1.0, total, alpha=0.1, exponent=1.5),
    "cosine_onecycle": lambda total: schedules.cosine_onecycle(total, 1.0),
    "cosine_restarts": lambda total: schedules.cosine_restarts(1.0, total, cycle_factor=2.0),
    "cyclic": lambda total: schedules.cyclic(0.1, 1.0, total, mode="triangular2"),
    "exponential_decay": lambda total: schedules.exponential_decay(1.0, total, 0.5, end_value=0.1),
    "in_epochs": lambda total: schedules.in_epochs(schedules.linear(1.0, 0.0, 3), total / 3),
    "in_samples": lambda total: schedules.in_samples(schedules.linear(1.0, 0.0, 32 * total), 32),
    "in_tokens": lambda total: schedules.in_tokens(schedules.linear(1.0, 0.0, 1e6 * total), 1e6),
    "inverse_sqrt": lambda total: schedules.inverse_sqrt(1.0, total - 1),
    "join": lambda total: schedules.join([schedules.linear(0.0, 1.0, 1), schedules.inverse_sqrt(1.0, 0)], [total - 1]),
    "linear": lambda total: schedules.linear(1.0, 0.0, total),
    "linear_onecycle": lambda total: schedules.linear_onecycle(total, 1.0),
    "onecycle": lambda total: schedules.onecycle(total, 1.0, three_phase=True),
    "piecewise_constant": lambda total: schedules.piecewise_constant(1.0, {total: 0.5}),
    "piecewise_interpolate": lambda total: schedules.piecewise_interpolate("cosine", 1.0, {0: 2.0, total: 0.5}),
    "polynomial": lambda total: schedules.polynomial(1.0, 0.1, 2.5, total),
    "sgdr": lambda total: schedules.sgdr([{"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 1, "decay_steps": total}] * 2),
    "warmup_constant": lambda total: schedules.warmup_constant(0.0, 1.0, total),
    "warmup_cosine_decay": lambda total: schedules.warmup_cosine_decay(0.0, 1.0, 1, total),
    "warmup_exponential_decay": lambda total: schedules.warmup_exponential_decay(0.0, 1.0, total, total, 0.5, staircase=True),
    "warmup_polynomial_decay": lambda total: schedules.warmup_polynomial_decay(0.0, 1.0, 1, total, power=2.0),
    "warmup_stable_decay": lambda total: schedules.warmup_stable_decay(0.0, 1.0, total - 1, total, total, shape="sqrt"),
}
over_the_table = pytest.mark.parametrize("name", sorted(SCHEDULES))


def test_every_schedule_has_an_example():
    assert set(EXAMPLES) == set(SCHEDULES)


@over_the_table
@pytest.mark.parametrize("total", [1, 2, 3, 1000])
def test_values_are_finite_and_of_bounded_size_however_short_the_run(name, total):
    schedule = EXAMPLES[name](total)
    values = [float(schedule(count)) for count in [*range(5), total, 10 * total, 10**12]]
    assert all(math.isfinite(value) and 0 <= value <= 2 for value in values)


@over_the_table
@pytest.mark.parametrize(
    "count", [7, torch.tensor(7), torch.tensor(7, dtype=torch.int32), torch.tensor(7.0), torch.tensor(7.0, dtype=torch.float64)]
)
def test_any_kind_of_count_gives_the_same_float64_scalar(name, count):
    schedule = EXAMPLES[name](10)
    value = schedule(count)
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert torch.equal(value, schedule(torch.tensor(7)))


@over_the_table
def test_the_value_is_on_the_device_of_the_count(name):
    assert EXAMPLES[name](10)(torch.zeros((), dtype=torch.int64, device="meta")).device.type == "meta"


@over_the_table
def test_a_mapped_count_gives_the_values_one_by_one(name):
    schedule = EXAMPLES[name](10)
    expected = torch.stack([schedule(count) for count in range(25)])
    # vectorised cosines and exponentials may differ in the last place
    torch.testing.assert_close(torch.vmap(schedule)(torch.arange(25)), expected, rtol=1e-14, atol=1e-15)


@over_the_table
def test_a_trace_at_one_count_holds_at_all_others(name):
    schedule = EXAMPLES[name](10)
    traced = make_fx(schedule)(torch.tensor(0))
    assert all(torch.equal(traced(torch.tensor(count)), schedule(count)) for count in (0, 1, 4, 9, 10, 11, 37))


@over_the_table
def test_dynamo_compiles_it_whole_to_the_same_numbers(name):
    schedule = EXAMPLES[name](10)
    compiled = torch.compile(schedule, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(compiled(torch.tensor(count)), schedule(count)) for count in (0, 4, 10, 37))


@over_the_table
def test_the_count_is_not_changed(name):
    count = torch.tensor(3.0, dtype=torch.float64)
    EXAMPLES[name](10)(count)
    assert torch.equal(count, torch.tensor(3.0, dtype=torch.float64))
