"""Values of single schedules, worked by hand, from a paper or from torch."""

import math

import pytest
import torch

from purestep import schedules


def values(schedule, counts):
    return [float(schedule(count)) for count in counts]


def torch_values(make_scheduler, learning_rate, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=learning_rate, momentum=0.9)
    scheduler = make_scheduler(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_polynomial_takes_the_power_of_what_remains():
    assert values(schedules.polynomial(1.0, 0.0, 2, 4, transition_begin=1), range(6)) == [1.0, 1.0, 0.5625, 0.25, 0.0625, 0.0]


def test_a_transition_without_steps_stays_at_its_first_value_as_in_optax():
    assert values(schedules.linear(0.5, 1.0, 0), [0, 1, 100]) == [0.5, 0.5, 0.5]


def test_a_warmup_without_steps_is_at_its_peak():
    assert values(schedules.warmup_constant(0.0, 1.0, 0), [0, 1, 100]) == [1.0, 1.0, 1.0]


def test_cosine_decay_is_at_its_middle_halfway_and_stays_at_its_end():
    assert values(schedules.cosine_decay(2.0, 10, alpha=0.5), [0, 5, 10, 11]) == pytest.approx([2.0, 1.5, 1.0, 1.0], abs=1e-15)


def test_warmup_cosine_decay_counts_its_length_from_zero():
    schedule = schedules.warmup_cosine_decay(0.0, 1.0, warmup_steps=10, decay_steps=60, end_value=0.1)
    assert values(schedule, [0, 5, 10, 35, 60, 61]) == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1, 0.1], abs=1e-15)


def test_a_warmup_that_takes_the_whole_run_is_followed_by_the_end_value():
    assert values(schedules.warmup_cosine_decay(0.0, 1.0, 1, 1, end_value=0.25), [0, 1, 2]) == [0.0, 0.25, 0.25]


def test_exponential_decay_in_stairs_changes_only_after_whole_periods():
    schedule = schedules.exponential_decay(8.0, 3, 0.5, transition_begin=1, staircase=True, end_value=1.5)
    assert values(schedule, [0, 1, 3, 4, 6, 7, 10]) == pytest.approx([8, 8, 8, 4, 4, 2, 1.5], abs=1e-14)


def test_join_gives_each_part_its_own_count_and_switches_exactly_at_the_boundary():
    schedule = schedules.join([schedules.constant(5.0), schedules.linear(1.0, 0.0, 4)], [3])
    assert values(schedule, range(8)) == [5.0, 5.0, 5.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_join_asks_no_part_about_the_time_before_its_start():
    def root(count):
        return torch.sqrt(schedules.constant(0.0)(count) + count)

    rate = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    schedule = schedules.join([schedules.constant(1.0), lambda count: rate * root(count)], [5])
    torch.autograd.backward(schedule(2))
    assert float(rate.grad) == 0.0


def test_piecewise_constant_multiplies_its_factors_and_changes_at_the_boundary():
    schedule = schedules.piecewise_constant(1.0, {30: 0.5, 10: 0.25})
    assert values(schedule, [9, 10, 29, 30, 99]) == [1.0, 0.25, 0.25, 0.125, 0.125]


def test_piecewise_interpolate_goes_through_its_points():
    schedule = schedules.piecewise_interpolate("linear", 1.0, {2: 3.0, 6: 0.5})
    assert values(schedule, [0, 1, 2, 4, 6, 7]) == [1.0, 2.0, 3.0, 2.25, 1.5, 1.5]


def test_linear_onecycle_of_one_step_begins_low():
    assert values(schedules.linear_onecycle(1, 1.0), [0, 1]) == pytest.approx([1 / 25, 1 / 25e4], rel=1e-14)


def test_warmup_stable_decay_is_a_trapezoid():
    schedule = schedules.warmup_stable_decay(0.0, 1.0, warmup_steps=2, stable_steps=3, decay_steps=4)
    assert values(schedule, range(10)) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 0.55), ("cosine", 0.55), ("sqrt", 1 - 0.9 * math.sqrt(0.5)), ("exponential", 0.1**0.5)]
)
def test_every_shape_of_the_fall_ends_at_its_end_value(shape, middle):
    schedule = schedules.warmup_stable_decay(0.0, 1.0, 0, 10, 20, end_value=0.1, shape=shape)
    assert values(schedule, [10, 20, 30, 31]) == pytest.approx([1.0, middle, 0.1, 0.1], rel=1e-14)


def test_inverse_sqrt_is_the_formula_of_the_transformer():
    # Vaswani et al., eq. 3: proportional to min(count^-0.5, count * warmup^-1.5)
    schedule = schedules.inverse_sqrt(1.0, 400)
    expected = [400**0.5 * min(count**-0.5, count * 400**-1.5) for count in (1, 200, 400, 401, 1600, 10000)]
    assert values(schedule, [1, 200, 400, 401, 1600, 10000]) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize(("anneal", "interpolate_type"), [("cos", "cosine"), ("linear", "linear")])
def test_onecycle_is_the_one_of_torch(anneal, interpolate_type, three_phase):
    ours = schedules.onecycle(50, 2.0, interpolate_type=interpolate_type, three_phase=three_phase)
    theirs = torch_values(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 2.0, total_steps=50, anneal_strategy=anneal, three_phase=three_phase
        ),
        2.0,
        50,
    )
    assert values(ours, range(50)) == pytest.approx(theirs, rel=1e-12)  # the same formula in another order


@pytest.mark.parametrize("mode", ["triangular", "triangular2", "exp_range"])
def test_cyclic_is_the_one_of_torch(mode):
    ours = schedules.cyclic(0.1, 1.0, 4, 6, mode=mode, gamma=0.97)
    theirs = torch_values(
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, 4, 6, mode=mode, gamma=0.97, cycle_momentum=False), 1.0, 40
    )
    assert values(ours, range(40)) == pytest.approx(theirs, rel=1e-12)  # the same formula in another order


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_cosine_restarts_are_those_of_torch(factor):
    ours = schedules.cosine_restarts(1.0, 5, cycle_factor=factor, end_value=0.01)
    theirs = torch_values(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5, factor, 0.01), 1.0, 200)
    assert values(ours, range(200)) == pytest.approx(theirs, rel=1e-10)  # the start of a cycle comes from a logarithm


@pytest.mark.parametrize(
    ("ours", "make_theirs"),
    [
        (schedules.linear(0.1, 1.0, 10), lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 10)),
        (schedules.polynomial(1.0, 0.0, 2, 30), lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 30, 2)),
        (schedules.exponential_decay(1.0, 1, 0.9), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
        (schedules.exponential_decay(1.0, 7, 0.5, staircase=True), lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.5)),
        (schedules.piecewise_constant(1.0, {5: 0.1, 20: 0.1}), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 20], 0.1)),
        (schedules.cosine_decay(1.0, 40, 0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40, 0.1)),
    ],
    ids=["LinearLR", "PolynomialLR", "ExponentialLR", "StepLR", "MultiStepLR", "CosineAnnealingLR"],
)
def test_schedules_are_those_of_torch_that_their_docstrings_name(ours, make_theirs):
    # torch multiplies step by step and gathers rounding errors
    assert values(ours, range(40)) == pytest.approx(torch_values(make_theirs, 1.0, 40), rel=1e-11)


def test_sgdr_starts_again_after_each_cycle():
    cycle = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 6}
    schedule = schedules.sgdr([cycle, {**cycle, "peak_value": 0.5, "decay_steps": 10}])
    assert values(schedule, [0, 2, 4, 6, 8, 16]) == pytest.approx([0.0, 1.0, 0.5, 0.0, 0.5, 0.0], abs=1e-15)


def test_units_read_the_schedule_at_the_converted_count():
    schedule = schedules.linear(1.0, 0.0, 10)
    assert values(schedules.in_epochs(schedule, 5), [0, 5, 7, 50]) == pytest.approx([1.0, 0.9, 0.86, 0.0], rel=1e-14)
    assert values(schedules.in_epochs(schedule, 5, staircase=True), [0, 4, 5, 9]) == [1.0, 1.0, 0.9, 0.9]
    assert values(schedules.in_samples(schedules.linear(1.0, 0.0, 1000), 100), [0, 5, 10]) == [1.0, 0.5, 0.0]
    assert values(schedules.in_tokens(schedules.linear(1.0, 0.0, 1e9), 5e7), [0, 10, 20]) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.cosine_decay(1.0, 0), r"decay_steps must lie in \(0, inf\), got 0"),
        (lambda: schedules.warmup_cosine_decay(0.0, 1.0, 10, 5), "includes the warm-up, so it must be at least warmup_steps = 10, got 5"),
        (lambda: schedules.warmup_cosine_decay(0.0, 1.0, 0, 0), r"warmup_cosine_decay: decay_steps must lie in \(0, inf\), got 0"),
        (lambda: schedules.warmup_polynomial_decay(0.0, 1.0, 0, 0), r"warmup_polynomial_decay: decay_steps must lie in \(0, inf\), got 0"),
        (lambda: schedules.warmup_stable_decay(0.0, 1.0, 0, 0, 0), "must be positive, got 0 for each"),
        (lambda: schedules.join([schedules.constant(1.0)], [3]), "1 schedules need 0 boundaries, got 1"),
        (lambda: schedules.join([schedules.constant(1.0)] * 3, [3, 1]), "must not decrease"),
        (lambda: schedules.exponential_decay(1.0, 10, -0.5), r"decay_rate must lie in \[0, inf\), got -0.5"),
        (lambda: schedules.piecewise_constant(1.0, {3: -1.0}), r"boundaries_and_scales\[3\] must lie in \[0, inf\), got -1.0"),
        (lambda: schedules.piecewise_interpolate("cubic", 1.0), "unknown interpolate_type 'cubic'"),
        (lambda: schedules.warmup_stable_decay(0.0, 1.0, 1, 1, 1, shape="cos"), "unknown shape 'cos'"),
        (lambda: schedules.warmup_stable_decay(0.0, 1.0, 1, 1, 1, shape="exponential"), "needs positive values"),
        (lambda: schedules.linear_onecycle(0, 1.0), r"transition_steps must lie in \(0, inf\), got 0"),
        (lambda: schedules.linear_onecycle(10, 1.0, 0.9, 0.2), r"pct_start must be at most pct_final = 0.2, got 0.9"),
        (lambda: schedules.cyclic(0.1, 1.0, 0), r"cyclic: rise_steps must lie in \(0, inf\), got 0"),
        (lambda: schedules.in_epochs(schedules.constant(1.0), 0), r"in_epochs: steps_per_epoch must lie in \(0, inf\), got 0"),
        (lambda: schedules.in_tokens(schedules.constant(1.0), -1), r"in_tokens: tokens_per_step must lie in \(0, inf\), got -1"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
