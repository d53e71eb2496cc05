"""Calls after the first: what is taken from the call before, and what is looked at anew."""

import copy
import dataclasses
import pickle
import weakref

import pytest
import torch

import purestep as ps
from purestep.errors import ConsumedStateError, RecompileError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import batches, run, training


def captured(step, **options):
    return ps.compile(step, backend="eager", donate=True, **options)


def linear():
    optimizer = ps.sgd(0.5)
    return ps.make_step(lambda w, x: (w["w"] * x).sum(), optimizer), ps.init_state({"w": torch.ones(2)}, optimizer)


def test_a_leaf_put_into_the_state_by_hand_is_used_by_the_next_call():
    step, state = linear()
    step = captured(step)
    state, _ = step(state, torch.ones(2))
    state.params["w"] = torch.full((2,), 8.0)
    assert step(state, torch.ones(2))[0].params["w"].tolist() == [7.5, 7.5]


def test_a_leaf_of_another_dtype_put_into_the_state_by_hand_is_another_capture():
    step, state = linear()
    step = captured(step, on_recompile="error")
    state, _ = step(state, torch.ones(2))
    state.params["w"] = torch.full((2,), 8.0, dtype=torch.float64)
    with pytest.raises(RecompileError, match=r"params\.w was float32\[2\] on cpu, is float64\[2\] on cpu"):
        step(state, torch.ones(2))


def test_a_batch_of_another_size_or_value_is_another_capture_and_the_first_is_used_again():
    step, state = linear()
    step = captured(step, on_recompile="ignore")
    for x in (torch.ones(2), torch.ones(1), torch.ones(2), 1.0, 2.0, 1.0):
        state, _ = step(state, x)
    assert len(step.explain()) == 4
    assert state.params["w"].tolist() == [1.0 - 0.5 * 7.0] * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_state_that_came_out_of_a_donating_step_goes_on_alike(copied):
    tr, data = training(), batches(4)
    step = captured(tr.step, on_recompile="error")
    state, _ = run(step, tr.init(), data[:2])
    other = copied(state)
    assert_trees_equal(run(step, state, data[2:]), run(step, other, data[2:]))


def test_a_step_compiled_twice_does_not_run_the_graph_of_the_other():
    step, state = linear()
    first, second = captured(step), captured(step)
    state, _ = first(state, torch.ones(2))
    state, _ = second(state, torch.ones(2))
    first(state, torch.ones(2))
    assert [len(compiled.explain()) for compiled in (first, second)] == [1, 1]


def test_surroundings_that_change_between_calls_are_noticed():
    step, state = linear()
    step = captured(step, on_recompile="error")
    state, _ = step(state, torch.ones(2))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RecompileError, match="autocast"):
        step(state, torch.ones(2))


def test_a_number_read_on_the_host_is_checked_at_every_call():
    optimizer = ps.sgd(1.0)
    step = captured(ps.make_step(lambda w, x: w * (1.0 if x.item() > 0 else -1.0), optimizer), on_recompile="ignore")
    state = ps.init_state(torch.zeros(()), optimizer)
    for x in (1.0, -1.0, 1.0, 1.0):
        state, _ = step(state, torch.tensor(x))
    assert state.params.item() == -2.0
    assert len(step.explain()) == 2


def test_neither_the_state_nor_what_it_was_is_kept_alive_by_the_compiled_step():
    step, state = linear()
    step = captured(step)
    for _ in range(3):
        state, _ = step(state, torch.ones(2))
    leaf = weakref.ref(state.params["w"])
    del state
    assert leaf() is None


def test_a_state_whose_donating_step_failed_half_way_is_not_taken_for_whole():
    plain, state = linear()
    step, x = captured(plain), torch.ones(2)
    state, _ = step(state, x)

    def fail(*arguments):
        raise torch.OutOfMemoryError("half-way")

    broken = dataclasses.replace(state._origin, graph=dataclasses.replace(state._origin.graph, run=fail))
    object.__setattr__(state, "_origin", broken)
    with pytest.raises(torch.OutOfMemoryError):
        step(state, x)
    with pytest.raises(ConsumedStateError):
        plain(state, x)
