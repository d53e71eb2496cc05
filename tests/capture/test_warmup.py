"""Captures made before training begins, how many there may be, and where compiled code is kept."""

import pytest
import torch

import purestep as ps
from purestep.errors import RecompileError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, training


def captured(step, **options):
    return ps.compile(step, backend="eager", **options)


def test_warming_up_changes_and_consumes_nothing_and_the_run_that_follows_captures_nothing():
    tr, data = training(), batches(3)
    state = tr.init()
    before = ps.tree.clone(state)
    step = captured(tr.step, donate=True, on_recompile="error")
    step.warmup(data[:1], state=state)
    assert_trees_equal(state, before)
    assert_trees_equal(run(step, state, data), run(tr.step, before, data))
    assert len(step.explain()) == 1


def test_each_size_is_captured_once_and_another_one_is_an_error():
    step, state = captured(lambda state, batch: (state + batch.sum(), {}), on_recompile="error"), torch.ones(1)
    step.warmup([torch.ones(size) for size in (3, 4, 3)], state=state)
    step(state, torch.ones(3))
    step(state, torch.ones(4))
    assert len(step.explain()) == 2
    with pytest.raises(RecompileError, match="capture number 3"):
        step(state, torch.ones(5))


def test_an_accumulating_step_is_captured_in_both_forms():
    tr, data = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(0.1))), batches(4)
    step = captured(tr.step, on_recompile="error", donate=True)
    step.warmup(data, state=tr.init())
    assert len(step.explain()) == 2
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert len(step.explain()) == 2


def test_a_step_captured_by_dynamo_is_warm_too():
    torch._dynamo.reset()
    step = captured(lambda state, batch: (state * 2 + batch.sum(), {}), capture="dynamo")
    step.warmup([torch.ones(3)], state=torch.ones(1))
    step(torch.ones(1), torch.ones(3))
    assert len(step.explain()) == 1


def test_so_many_captures_as_expected_pass_without_a_word():
    step = captured(lambda state, batch: (state + batch.sum(), {}), on_recompile="error", max_captures=2)
    for size in (3, 4, 3):
        step(torch.ones(1), torch.ones(size))
    with pytest.raises(RecompileError, match=r"float32\[3\] on cpu, is float32\[5\] on cpu.*max_captures"):
        step(torch.ones(1), torch.ones(5))


@pytest.mark.parametrize("number", [0, True, 1.5])
def test_a_number_of_captures_is_a_whole_number(number):
    with pytest.raises(ValueError, match="max_captures must be a whole number"):
        captured(lambda state: state, max_captures=number)
