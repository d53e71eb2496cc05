"""Ranks that have come apart are told so, by name, before they hang."""

import pytest

from tests.distributed import runs
from tests.distributed.processes import outcomes, run_ranks

pytestmark = pytest.mark.distributed


def first_lines(results):
    return [str(result).splitlines()[0] for result in results]


@pytest.mark.parametrize("path", ["params.layer.weight", "opt_state.adamw.scale_by_adam.mu.layer.bias", "buffers.norm.running_var"])
def test_one_bit_of_difference_is_found_and_named_on_all_ranks(path):
    for line in first_lines(outcomes(3, runs.flipped_bit, path, timeout_seconds=30)):
        assert line.startswith(f"DistributedError: state: {path} differs between rank 0 and rank 1 (1 leaves differ in all)")


def test_another_optimizer_on_one_rank_is_refused_at_the_start():
    first, other = first_lines(outcomes(2, runs.another_model, timeout_seconds=30))
    assert first.startswith("DistributedError: rank 1 failed")
    assert "rank 1 has [" in other
    assert "opt_state" in other


def test_another_seed_on_one_rank_is_refused_at_the_start():
    for line in first_lines(outcomes(2, runs.another_seed, timeout_seconds=30)):
        assert line.startswith("DistributedError: fit: the first state: seed differs between rank 0 and rank 1")


def test_ranks_that_drift_apart_are_stopped_at_the_next_comparison():
    for line in first_lines(outcomes(2, runs.drifted, timeout_seconds=30)):
        assert line.startswith("DistributedError: batch 2: params.0.bias differs between rank 0 and rank 1")


def test_other_settings_on_one_rank_are_refused_with_the_difference():
    _, other = first_lines(outcomes(2, runs.other_settings, timeout_seconds=30))
    assert "spec: rank 1 has ['seed: 1'], rank 0 has ['seed: 0'] in their place" in other


def test_scalars_are_reduced_over_ranks():
    found = {"mean": {"a": 1.0, "b": 1.0}, "sum": {"a": 3.0, "b": 3.0}, "min": {"a": 0.0, "b": 1.0}, "max": {"a": 2.0, "b": 1.0}}
    assert run_ranks(3, runs.reduced) == [found] * 3


def test_sums_out_of_order_are_an_error_that_names_what_each_rank_was_about_to_do():
    lines = first_lines(outcomes(2, runs.sums_out_of_order, timeout_seconds=30))
    assert all("rank 0: sum number 2 of [2] torch.float32; rank 1: sum number 2 of [5] torch.float64" in line for line in lines)
