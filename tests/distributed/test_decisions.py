"""What the loop decides, it decides on all ranks at once; nobody waits in vain."""

import itertools
import json
import time

import pytest
import torch

import purestep as ps
from tests.distributed import faults
from tests.distributed.processes import outcomes, run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()


@pytest.mark.parametrize(("world_size", "number", "batch_size"), [(2, 13, 4), (4, 3, 8)], ids=["padded", "fewer samples than ranks"])
def test_epochs_over_a_loader_are_those_of_one_process(world_size, number, batch_size):
    state, seen, reason = faults.epochs_over_a_loader(ALONE, number, batch_size)
    by_rank = run_ranks(world_size, faults.epochs_over_a_loader, number, batch_size)
    for shared, _, shared_reason in by_rank:
        assert torch.allclose(shared["params.w"], state["params.w"], rtol=1e-12)
        assert (shared_reason, int(shared["counters.batch_count"])) == (reason, int(state["counters.batch_count"]))
    together = [sorted(itertools.chain(*parts)) for parts in zip(*(ids for _, ids, _ in by_rank), strict=True)]
    assert together == [sorted(ids) for ids in seen]


def test_the_first_rank_whose_data_ends_ends_the_epoch_of_all():
    (batches, warned), (other_batches, none) = run_ranks(2, faults.unequal_lists, timeout_seconds=30)
    assert (batches, other_batches, none) == (8, 8, [])
    assert all("the data of another rank has ended" in message for message in warned)
    assert warned


def test_a_signal_to_one_rank_stops_all_at_the_same_batch():
    assert run_ranks(2, faults.stopped_by_a_signal_on_rank_one) == [("SIGTERM", 3)] * 2


def test_listeners_hear_on_rank_zero_only_unless_they_ask():
    (first, everywhere), *others = run_ranks(2, faults.heard_by)
    assert first == everywhere > 0
    assert others == [(0, everywhere)]


@pytest.mark.parametrize("scenario", [faults.error_in_a_listener, faults.error_in_the_data], ids=["listener", "data"])
def test_an_error_on_one_rank_is_an_error_on_all(scenario):
    errors = [str(error).splitlines()[0] for error in outcomes(2, scenario, timeout_seconds=30)]
    assert sum(error.startswith("OSError") for error in errors) == 1
    assert sum(error.startswith("DistributedError: rank ") and "OSError" in error for error in errors) == 1


def test_listeners_of_every_rank_are_told_of_the_error_and_those_that_save_for_one_process_are_not():
    first, other = [str(error).splitlines()[0] for error in outcomes(2, faults.error_in_the_data, timeout_seconds=30)]
    assert first.endswith("told of [('DistributedError', 1)], alone []")
    assert other.endswith("told of [('OSError', 1)], alone []")


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 1), (2, 5), (4, 2)])
def test_validation_is_the_mean_over_samples_whatever_the_world(world_size, batch_size):
    # losses 10, 0, 0, 0, 0
    assert run_ranks(world_size, faults.validated, 5, batch_size) == [pytest.approx(2.0, rel=1e-15)] * world_size


def test_validation_bears_ranks_without_a_batch():
    assert run_ranks(3, faults.validated, 2, 1) == [pytest.approx(5.0, rel=1e-15)] * 3


@pytest.mark.parametrize("phase", ["data", "step", "save", "validation", "end of epoch"])
def test_a_killed_rank_makes_the_others_stop_with_a_message_that_names_it(phase, tmp_path):
    began = time.monotonic()
    survivor, dead = outcomes(2, faults.killed, phase, str(tmp_path), timeout_seconds=40, wait_seconds=15)
    assert "exit code -9" in str(dead)
    assert str(survivor).startswith("DistributedError: rank 0 of 2 waited in vain for another rank")
    assert "no word from rank 1, which has ended" in str(survivor)
    assert time.monotonic() - began < 30
    status = [json.loads((tmp_path / f"rank-0000{rank}.json").read_text()) for rank in range(2)]
    assert [words["state"] for words in status] == ["failed", "running"]
    assert status[0]["no_word_from"] == [1]


def test_a_slow_rank_is_waited_for_as_long_as_collectives_may_take_and_no_longer():
    one, other = outcomes(2, faults.slow, 1.0, collective_seconds=10.0)
    assert one == other != 1.0
    began = time.monotonic()
    waiting, _ = outcomes(2, faults.slow, 5.0, wait_seconds=30.0, collective_seconds=2.0)
    assert str(waiting).startswith("DistributedError: rank 0 of 2 waited in vain for another rank")
    assert time.monotonic() - began < 25
