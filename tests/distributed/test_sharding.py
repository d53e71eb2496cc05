"""State in parts, the stages 1 to 3 of ZeRO: the same training in less memory."""

import pytest
import torch

import purestep as ps
from purestep.distributed import Topology
from tests.distributed import runs, scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed
ALONE = Topology()
TOLERANCE = 1e-10  # sums of 12 terms in another order, four updates; the Newton-Schulz steps of muon enlarge what was rounded
SHARDED = scenarios.STAGES[1:]
CASES = [(name, stage, {}) for name in scenarios.STAGED for stage in SHARDED]
CASES += [("adamw", stage, changes) for stage in SHARDED for changes in ({"microbatches": 2}, {"grad_engine": "func"})]


def differences(one, other, allowed=()):
    """Leaves of `other` that differ from `one`, or are not there."""
    close = dict(rtol=TOLERANCE, atol=TOLERANCE)
    return [
        name
        for name, value in other.items()
        if name not in allowed and not (one[name].shape == value.shape and torch.allclose(one[name].double(), value.double(), **close))
    ]


@pytest.mark.parametrize(("world_size", "cases"), [(2, CASES), (3, [case for case in CASES if case[0] in ("adamw", "muon")])])
def test_every_stage_gives_the_state_and_the_metrics_of_one_process(world_size, cases):
    by_rank = run_ranks(world_size, scenarios.staged_all, cases)
    for number, (name, stage, changes) in enumerate(cases):
        state, metrics, _ = scenarios.staged(ALONE, name, "nothing", changes)
        for results in by_rank:
            shared_state, shared_metrics, _ = results[number]
            assert differences(shared_state, state, {"counters.global_step_count"}) == [], (name, stage)
            # where a batch leaves a window open, the norm reported is that of the latest update
            allowed = {"update/grad_norm"} if "window" in name else set()
            assert [differences(a, b, allowed) for a, b in zip(shared_metrics, metrics, strict=True)] == [[]] * 4, (name, stage)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_holds_its_share_of_what_is_in_parts(world_size):
    for held in run_ranks(world_size, scenarios.held_by_stages):
        whole = held["nothing"]
        # by stage: parameters, optimizer state with an open window, averages
        in_parts = {"optimizer": {"moments"}, "gradients": {"moments", "window"}, "parameters": set(whole)}
        for stage, what in in_parts.items():
            assert [name for name in what if held[stage][name] > (1 / world_size + 0.1) * whole[name]] == [], stage


def test_stage_1_changes_no_bit():
    for results in run_ranks(2, scenarios.staged_all, [("window", stage, {}) for stage in ("nothing", "optimizer")]):
        (whole, *_), (parts, *_) = results
        assert [path for path in whole if not torch.equal(whole[path], parts[path])] == []


def test_a_captured_step_gives_the_numbers_of_the_eager_one():
    for eager, captured in run_ranks(
        2, scenarios.staged_all, [("adamw", "parameters", {}, how) for how in (None, {"backend": "aot_eager"})]
    ):
        assert differences(captured[0], eager[0]) == []


@pytest.mark.slow
def test_gradients_in_parts_captured_by_dynamo_give_the_numbers_of_the_eager_step():
    for eager, captured in run_ranks(2, scenarios.by_dynamo, timeout_seconds=120, wait_seconds=100):
        assert differences(captured, eager) == []


def test_dynamo_is_told_that_it_cannot_capture_parameters_in_parts():
    training = ps.distributed.data_parallel(scenarios.wide_training("adamw"), Topology(rank=0, world_size=2), shard_state="parameters")
    step = ps.compile(training.step, capture="dynamo", backend="eager")
    with pytest.raises(Exception, match="parameters in parts cannot be captured by Dynamo"):
        step(training.init(), scenarios.samples(12))


def test_a_leaf_is_cut_evenly_where_it_can_be_and_a_single_number_is_not():
    shapes = [(7, 4), (3, 5), (6,), (1, 1), ()]
    found = [ps.distributed.parts.cut_of(torch.empty(shape), 2) for shape in shapes]
    assert found == [(1, 4), (1, 5), (0, 6), None, None]


@pytest.mark.parametrize("stage", ["optimizer", "parameters"])
def test_a_sharded_run_goes_on_bitwise_and_in_another_world(stage, tmp_path):
    for whole, resumed in run_ranks(2, runs.stopped_and_resumed, "window", str(tmp_path), stage):
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    three = run_ranks(3, runs.resumed, "window", str(tmp_path / "pieces"), stage)
    assert [int(state["counters.epoch_count"]) for state in three] == [3] * 3


def test_large_models_are_gathered_in_several_pieces(monkeypatch):
    monkeypatch.setattr(ps.distributed.parts, "_BUCKET_BYTES", 100)
    assert list(ps.distributed.parts._buckets([60, 30, 30, 200, 5])) == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_parts_of_any_dtype_and_shape_come_back_and_add_up():
    for gathered, expected, summed, expected_parts in run_ranks(3, scenarios.parts_of_dtypes):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(gathered, expected, strict=True))
        # small whole numbers, whose sums are exact
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(summed, expected_parts, strict=True))
