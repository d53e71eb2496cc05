"""Schedules of weights: values, counts, and arguments that make no sense."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.errors import LossError
from purestep.losses import WEIGHTS, ConstantWeight, CosineWeight, LinearWeight, PiecewiseWeight

EXAMPLES = {
    "ConstantWeight": ConstantWeight(2.0),
    "LinearWeight": LinearWeight(1.0, 5.0, 4),
    "CosineWeight": CosineWeight(1.0, 5.0, 4),
    "PiecewiseWeight": PiecewiseWeight((2, 5), (1.0, 3.0, 0.5)),
}


def values(schedule, counts, epoch=0):
    return [float(schedule(torch.tensor(count), torch.tensor(epoch))) for count in counts]


def test_every_schedule_of_the_table_has_an_example():
    assert set(EXAMPLES) == set(WEIGHTS)


def test_constant():
    assert values(ConstantWeight(2.0), [0, 7]) == [2.0, 2.0]


def test_a_line_between_two_constants():
    assert values(LinearWeight(1.0, 5.0, 4), [0, 1, 3, 4, 9]) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_half_a_cosine_between_two_constants():
    found = values(CosineWeight(1.0, 5.0, 4), [0, 1, 2, 4, 9])
    assert found == pytest.approx([1.0, 3 - math.sqrt(2), 3.0, 5.0, 5.0], rel=1e-15)
    assert (found[0], found[-1]) == (1.0, 5.0)


def test_a_boundary_has_the_new_value_already():
    assert values(PiecewiseWeight((2, 5), (1.0, 3.0, 0.5)), [0, 1, 2, 4, 5, 9]) == [1.0, 1.0, 3.0, 3.0, 0.5, 0.5]


def test_a_ramp_reaches_its_end_exactly():
    assert values(LinearWeight(0.1, 0.7, 3), [3]) == [0.7]


@pytest.mark.parametrize(
    "make", [lambda: LinearWeight(0.0, 4.0, 4, per_epoch=True), lambda: PiecewiseWeight((3,), (0.0, 3.0), per_epoch=True)]
)
def test_epochs_are_counted_where_asked_for(make):
    assert values(make(), [0, 100], epoch=3) == [3.0, 3.0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_schedule_is_a_hashable_value_in_the_graph(name):
    schedule, zero = EXAMPLES[name], torch.tensor(0)
    assert hash(schedule) == hash(EXAMPLES[name])
    value = schedule(torch.tensor(3), zero)
    assert (value.dtype, value.shape) == (torch.float64, ())
    assert torch.equal(make_fx(schedule)(torch.tensor(0), zero)(torch.tensor(3), zero), value)
    assert torch.equal(torch.func.vmap(schedule, (0, None))(torch.arange(9), zero)[3], value)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(schedule, fullgraph=True, backend="aot_eager")(torch.tensor(3), zero), value)


def test_lists_are_taken_as_values_not_kept():
    boundaries = [1, 2]
    schedule = PiecewiseWeight(boundaries, [0.0, 1.0, 2.0])
    boundaries.append(0)
    assert schedule.boundaries == (1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstantWeight(float("nan")), r"ConstantWeight\.value must be a finite number, got nan"),
        (lambda: ConstantWeight(True), r"ConstantWeight\.value must be a finite number, got True"),
        (lambda: LinearWeight(0.0, float("inf"), 3), r"LinearWeight\.end must be a finite number"),
        (lambda: LinearWeight(0.0, 1.0, 0), r"LinearWeight\.num_steps must be a whole number above 0, got 0"),
        (lambda: CosineWeight(0.0, 1.0, 2.5), r"CosineWeight\.num_steps must be a whole number above 0, got 2\.5"),
        (lambda: CosineWeight(0.0, 1.0, 2, per_epoch=1), r"CosineWeight\.per_epoch must be True or False, got 1"),
        (lambda: PiecewiseWeight((1,), (0.0,)), "1 boundaries need 2 values, got 1"),
        (lambda: PiecewiseWeight((2, 2), (0.0, 1.0, 2.0)), "counts of 0 or more that increase"),
        (lambda: PiecewiseWeight((-1,), (0.0, 1.0)), "counts of 0 or more that increase"),
        (lambda: PiecewiseWeight((1.5,), (0.0, 1.0)), "counts of 0 or more that increase"),
        (lambda: PiecewiseWeight((1,), (0.0, float("nan"))), r"PiecewiseWeight\.values\[1\] must be a finite number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises(LossError, match=message):
        make()
