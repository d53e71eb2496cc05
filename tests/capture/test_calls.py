"""Calls after the first: what is taken from the call before, and what is looked at anew."""

import copy
import dataclasses
import pickle
import weakref
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch

import purestep as ps
from purestep.errors import CaptureError, ConsumedStateError, RecompileError
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


@ps.tree.node
class Slots:
    """A state of containers, some of which can be written to."""

    first: dict
    second: dict
    rest: tuple | list | dict


def slots(rest):
    return Slots({"a": torch.ones(2), "b": torch.ones(1)}, {"c": torch.zeros(2)}, rest)


def add(state, x):
    return ps.tree.map(lambda leaf: leaf + x, state), {}


def put(state):
    state.first["a"] = torch.full((2,), 8.0)


def rename(state):
    state.first["d"] = state.first.pop("b")


def move(state):
    last = state.second.pop("c")
    state.second.update(b=state.first.pop("b"), c=last)


def insert(state):
    state.second["d"] = torch.ones(2)


def put_deeper(state):
    state.rest[0]["e"] = torch.full((2,), 8.0)


def append(state):
    state.rest.append(torch.ones(3))


CHANGES = {
    put: (),
    rename: (),
    move: (),
    insert: (),
    put_deeper: ({"e": torch.ones(2)},),
    append: [torch.ones(2)],
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_is_changed_in_a_state_by_hand_is_noticed(change):
    step = captured(add, on_recompile="ignore")
    state, _ = step(slots(ps.tree.clone(CHANGES[change])), torch.ones(()))
    assert state._origin.is_of(state)
    change(state)
    expected, _ = add(state, torch.ones(()))
    assert_trees_equal(step(state, torch.ones(()))[0], expected)


def test_a_dict_that_is_not_a_plain_one_is_looked_at_anew():
    step = captured(add)
    state, _ = step(slots(OrderedDict(e=torch.ones(2), f=torch.ones(2))), torch.ones(()))
    state.rest["g"] = state.rest.pop("e")
    expected, _ = add(state, torch.ones(()))
    with pytest.warns(UserWarning, match="the structure of the arguments changed"):
        assert_trees_equal(step(state, torch.ones(()))[0], expected)


class Named(NamedTuple):
    state: Slots
    metrics: dict


def test_a_state_that_was_put_together_anew_is_watched_where_it_lives_now():
    step = captured(lambda state, x: Named(*add(state, x)))
    state = step(slots(()), torch.ones(())).state
    state = step(state, torch.ones(())).state
    put(state)
    assert step(state, torch.ones(())).state.first["a"].tolist() == [9.0, 9.0]


def test_a_state_with_a_part_replaced_is_noticed():
    step = captured(add, on_recompile="error")
    state, _ = step(slots(()), torch.ones(()))
    state = dataclasses.replace(state, second={"c": torch.full((2,), 8.0)})
    assert step(state, torch.ones(()))[0].second["c"].tolist() == [9.0, 9.0]


def test_leaves_of_a_returned_state_that_were_made_to_share_memory_are_refused():
    step = captured(add)
    state, _ = step(slots(()), torch.ones(()))
    state.second["c"] = state.first["a"]
    with pytest.raises(CaptureError, match=r"second\.c and first\.a share memory"):
        step(state, torch.ones(()))


def test_a_training_state_is_trusted_until_it_is_written_to():
    tr = training(optimizer=ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(0.1)), hooks=(ps.hooks.ema(0.9),))
    state, _ = captured(tr.step)(tr.init(), batches(1)[0])
    assert state._origin.is_of(state)
    state.hook_state["other"] = torch.ones(())
    assert not state._origin.is_of(state)


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

    broken = dataclasses.replace(state._origin, run=fail)
    object.__setattr__(state, "_origin", broken)
    with pytest.raises(torch.OutOfMemoryError):
        step(state, x)
    with pytest.raises(ConsumedStateError):
        plain(state, x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_captured_step_records_no_gradients_whatever_its_arguments_ask_for(backend):
    step = ps.compile(lambda state, x: ({"a": state["a"] + x @ x}, {"product": x @ x}), backend=backend)
    state, metrics = step({"a": torch.ones(2, 2)}, torch.ones(2, 2, requires_grad=True))
    assert torch.is_grad_enabled()
    assert not (state["a"].requires_grad or metrics["product"].requires_grad)
