"""Replaying a donated step as a CUDA graph: the logic, with a recorder on the CPU in its place."""

import pytest
import torch

import purestep as ps
from purestep.capture import replay
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import batches, poisoned, run, training
from tests.recorder import CpuRecorder


@pytest.fixture
def recorder(monkeypatch):
    """Counts what it records."""
    recorder = CpuRecorder()
    monkeypatch.setattr(replay.CudaGraphs, "device_type", "cpu")
    monkeypatch.setattr(replay.CudaGraphs, "record", lambda graphs, run, device: recorder.record(run))
    return recorder


def replayed(step, **options):
    return ps.compile(step, backend="eager", donate=True, mode="reduce-overhead", **options)


def everything():
    optimizer = ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adamw(ps.schedules.linear(1e-2, 1e-3, 5)))
    return training(optimizer=optimizer, hooks=[ps.hooks.ema(0.9)])


def test_a_replayed_run_is_recorded_once_and_has_the_bits_of_the_eager_one(recorder):
    tr, data = everything(), batches(6)
    data[4] = poisoned(data[4])
    step, plain = replayed(tr.step, on_recompile="error"), ps.tree.clone(tr.init())
    state = tr.init()
    for batch in data:
        state, metrics = step(state, batch)
        plain, expected = tr.step(plain, batch)
        assert_trees_equal((state, metrics), (plain, expected))
    assert recorder.recorded == 1
    assert [record.replay for record in step.explain()] == ["replayed as a CUDA graph"]


def test_results_of_a_replay_stay_as_they_are_when_the_next_runs(recorder):
    tr, data = everything(), batches(5)
    step = replayed(tr.step)
    state, _ = run(step, tr.init(), data[:2])
    state, metrics = step(state, data[2])
    before = ps.tree.clone(metrics)
    run(step, state, data[3:])
    assert_trees_equal(metrics, before)


def test_each_size_of_batch_is_recorded_once_however_often_they_take_turns(recorder):
    tr, sizes = training(), (8, 4, 8, 4, 4, 8, 8, 4)
    data = [batches(1, size, seed=number)[0] for number, size in enumerate(sizes)]
    state, _ = run(replayed(tr.step, max_captures=2), tr.init(), data)
    assert_trees_equal(state, run(tr.step, tr.init(), data)[0])
    assert recorder.recorded == 2


def test_two_states_that_take_turns_are_recorded_once_each(recorder):
    tr, data = training(), batches(5)
    step, one, other = replayed(tr.step), tr.init(seed=1), tr.init(seed=2)
    for batch in data:
        (one, _), (other, _) = step(one, batch), step(other, batch)
    assert_trees_equal((one, other), tuple(run(tr.step, tr.init(seed=seed), data)[0] for seed in (1, 2)))
    assert recorder.recorded == 2


def test_a_state_loaded_or_changed_by_hand_is_trained_from_what_it_holds(recorder):
    tr, data = training(), batches(9)
    step = replayed(tr.step)
    half, _ = run(step, tr.init(), data[:4])
    copy = ps.tree.clone(half)
    whole, _ = run(step, half, data[4:])
    assert_trees_equal(run(step, copy, data[4:])[0], whole)
    assert_trees_equal(whole, run(tr.step, tr.init(), data)[0])


def test_no_more_places_are_kept_than_may_take_turns():
    replays = replay.Replays(lambda *tensors: [], slice(0, 0), replay.CudaGraphs())
    first, *others = [[torch.zeros(1)] for _ in range(replay.MOST_PLACES + 1)]
    oldest, kept = replays.at(first), [replays.at(state) for state in others]
    assert [replays.at(state) for state in others] == kept
    assert replays.at(first) is not oldest


def test_more_states_than_places_are_kept_are_trained_all_the_same(recorder):
    tr, (batch,) = training(), batches(1)
    step = replayed(tr.step)
    states = [tr.init(seed=seed) for seed in range(replay.MOST_PLACES + 3)]
    for _ in range(2):
        states = [step(state, batch)[0] for state in states]
    assert_trees_equal(states[-1], run(tr.step, tr.init(seed=len(states) - 1), [batch] * 2)[0])


def test_states_that_are_given_once_are_not_recorded(recorder):
    tr, (batch,) = training(), batches(1)
    step = replayed(tr.step)
    kept = [step(tr.init(), batch)[0] for _ in range(3)]
    assert recorder.recorded == 0
    assert_trees_equal(kept[0], kept[2])


def test_a_batch_may_be_expanded_empty_or_of_several_dtypes(recorder):
    def step(state, batch):
        total = batch["wide"].sum() + batch["none"].sum() + batch["whole"].sum()
        return state.replace(x=state.x + total), {"total": total, "count": batch["whole"] + 1, "large": batch["wide"] > 2}

    @ps.tree.node
    class One:
        x: torch.Tensor

        def replace(self, **changes):
            return One(**changes)

    data = [
        {"wide": torch.full((1, 3), float(i)).expand(4, 3), "none": torch.zeros(0, 2), "whole": torch.tensor([i, 2 * i])} for i in range(5)
    ]
    compiled, state, plain = replayed(step), One(torch.zeros(())), One(torch.zeros(()))
    for batch in data:
        state, metrics = compiled(state, batch)
        plain, expected = step(plain, batch)
        assert_trees_equal((state, metrics), (plain, expected))
    assert recorder.recorded == 1


def test_a_replay_records_no_gradients_whatever_the_batch_asks_for(recorder):
    step = replayed(lambda state, batch: ({"x": state["x"] + batch}, {"twice": 2 * batch}))
    state = {"x": torch.zeros(())}
    for value in (1.0, 2.0, 3.0, 4.0):
        state, metrics = step(state, torch.tensor(value, requires_grad=True))
        assert not (metrics["twice"].requires_grad or state["x"].requires_grad)
    assert (float(state["x"]), float(metrics["twice"]), recorder.recorded) == (10.0, 8.0, 1)


def test_a_replay_may_be_recorded_in_inference_mode_and_run_out_of_it(recorder):
    step = replayed(lambda state, batch: ({"x": state["x"] + batch}, {"twice": 2 * batch}))
    state = {"x": torch.zeros(())}
    for inference in (True, True, False, True, False):
        with torch.inference_mode(inference):
            state, metrics = step(state, torch.tensor(3.0))
    assert (float(state["x"]), float(metrics["twice"]), recorder.recorded) == (15.0, 6.0, 1)


def test_a_leaf_that_was_put_elsewhere_in_memory_is_read_there(recorder):
    tr, data = everything(), batches(8)
    step = replayed(tr.step)
    state, _ = run(step, tr.init(), data[:4])
    for leaf in ps.tree.leaves(state.params):
        leaf.data = 0.5 * leaf.data  # the same object
    expected, _ = run(tr.step, ps.tree.clone(state), data[4:])
    assert_trees_equal(run(step, state, data[4:])[0], expected)


def test_tensors_that_a_step_closes_over_are_read_where_they_are(recorder):
    scale = torch.tensor(1.0)
    step = replayed(lambda state, batch: ({"x": state["x"] + scale * batch}, {}))
    state = {"x": torch.zeros(())}
    for value in (1.0, 1.0, 1.0, 10.0):
        scale.fill_(value)
        state, _ = step(state, torch.ones(()))
    assert float(state["x"]) == 13.0


def test_flat_storage_is_replayed_too(recorder):
    tr, data = everything(), batches(5)
    state, _ = run(replayed(tr.step, storage="flat"), tr.init(), data)
    assert_trees_close(state, run(tr.step, tr.init(), data)[0], rtol=1e-10, atol=1e-10)  # its norm sums in another order
    assert recorder.recorded == 1


def test_what_is_not_on_a_cuda_device_runs_as_without():
    tr, data = training(), batches(4)
    step = replayed(tr.step)
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert [record.replay for record in step.explain()] == ["not replayed: it computes on cpu, not on one CUDA device alone"]


def test_a_step_that_reads_numbers_on_the_host_is_not_replayed(recorder):
    step = replayed(lambda state, batch: ({"x": state["x"] + int(batch["n"]) * batch["x"]}, {}), on_recompile="ignore")
    state = {"x": torch.zeros(())}
    for number in (1, 1, 1, 2):
        state, _ = step(state, {"n": torch.tensor(number), "x": torch.ones(())})
    assert float(state["x"]) == 5.0
    assert recorder.recorded == 0
    assert step.explain()[0].replay == "not replayed: it reads numbers on the host"


def test_a_graph_that_serves_a_range_of_sizes_is_not_replayed(recorder):
    step = replayed(lambda state, batch: ({"x": state["x"] + batch["x"].sum()}, {}), dynamic={"x": {0: ("length", 2, 9)}})
    state = {"x": torch.zeros(())}
    for size in (2, 3, 3, 4):
        state, _ = step(state, {"x": torch.ones(size)})
    assert float(state["x"]) == 12.0
    assert (recorder.recorded, step.explain()[0].replay) == (0, "not replayed: its sizes vary")


@pytest.mark.parametrize("options", [{"donate": False}, {"donate": True, "capture": "dynamo"}])
def test_a_replay_needs_a_traced_step_with_donated_memory(options):
    with pytest.raises(ValueError, match=r"mode='reduce-overhead'.*needs donate=True"):
        ps.compile(lambda state: (state, {}), mode="reduce-overhead", **options)


def test_an_unknown_mode_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"mode='max-autotune' is unknown \(known: default, reduce-overhead\)"):
        ps.compile(lambda state: (state, {}), mode="max-autotune")
