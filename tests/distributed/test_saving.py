"""Runs on several ranks continue bitwise from what rank 0 wrote, in a world of any size."""

import functools

import pytest
import torch

import purestep as ps
from tests.distributed import runs
from tests.distributed.processes import outcomes, run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()


@pytest.mark.parametrize("chain", runs.CHAINS)
def test_a_run_that_was_stopped_goes_on_bitwise(chain, tmp_path):
    for whole, resumed in run_ranks(2, runs.stopped_and_resumed, chain, str(tmp_path)):
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


@pytest.mark.parametrize("world_size", [3, 1])
def test_another_world_goes_on_with_the_same_window(world_size, tmp_path):
    before = run_ranks(2, runs.stopped, "window", str(tmp_path), 5)
    like = runs.noisy_training(ALONE, "window").init()
    extra = ("*sum_over_ranks*", "hook_state.windows_of_*")
    alone = ps.load(tmp_path, like, allow_extra=extra)
    total = sum(state["opt_state.accumulate.total.layer.weight"] for state in before)
    assert torch.equal(alone.opt_state["accumulate"].total["layer.weight"], total)
    results = run_ranks(world_size, runs.resumed, "window", str(tmp_path))
    assert [int(state["counters.epoch_count"]) for state in results] == [3] * world_size


def test_what_one_process_saved_more_go_on_with(tmp_path):
    runs.stopped(ALONE, "adamw", str(tmp_path), 5)
    states = run_ranks(2, runs.resumed, "adamw", str(tmp_path))
    assert [int(state["counters.batch_count"]) for state in states] == [12, 12]


def test_a_save_that_fails_on_rank_zero_fails_on_all():
    first, other = outcomes(2, runs.full_disk, timeout_seconds=30)
    assert str(first).startswith("OSError: no space left on device")
    assert str(other).startswith("DistributedError: rank 0 failed")
    assert "no space left on device" in str(other).splitlines()[0]


def test_after_a_rank_was_killed_the_run_goes_on_bitwise_from_the_newest_checkpoint(tmp_path):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    survivor, _ = outcomes(2, runs.killed_beside_a_save, str(pieces), timeout_seconds=40, wait_seconds=10)
    assert "waited in vain" in str(survivor)
    expected, resumed = (run_ranks(2, runs.resumed, "adamw", str(root))[0] for root in (whole, pieces))
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


def test_a_load_that_fails_on_rank_zero_fails_on_all(tmp_path):
    first, other = outcomes(2, _load_nothing, str(tmp_path), timeout_seconds=30)
    assert str(first).startswith("NoCheckpointError")
    assert str(other).startswith("DistributedError: rank 0 failed")


def _load_nothing(topology, root):
    ps.distributed.restore(functools.partial(ps.load, root), runs.noisy_training(topology, "adamw").init(), topology)
