"""The result of a step does not depend on how its batch is shared among ranks."""

import numpy as np
import pytest
import torch

import purestep as ps
from tests.distributed import molecules, scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed

# one batch of 12 samples a step; (begin, end) of each rank: uneven, with an empty rank, with one that has no label of B
SPLITS = {
    2: [((0, 7), (7, 12)), ((0, 12), (12, 12)), ((0, 1), (1, 12)), ((3, 12), (0, 3))],
    3: [((0, 4), (4, 8), (8, 12)), ((0, 0), (0, 11), (11, 12)), ((1, 12), (0, 1), (0, 0)), ((0, 2), (2, 3), (3, 12))],
    4: [
        ((0, 3), (3, 6), (6, 9), (9, 12)),
        ((0, 1), (1, 2), (2, 3), (3, 12)),
        ((0, 0), (0, 0), (0, 12), (0, 0)),
        ((6, 12), (0, 6), *[(0, 0)] * 2),
    ],
}
TOLERANCE = 1e-12  # sums of at most 12 terms in another order, four updates
REPORTED_ELSEWHERE = {"update/grad_norm"}  # of the latest update where a batch leaves a window open


def alone(optimizer, changes):
    batches = [scenarios.samples(12, seed) for seed in range(4)]
    own = scenarios.training(optimizer, **changes)
    state, metrics = scenarios.run_steps(own.step, own.init(), batches)
    return scenarios.plain(state), metrics


def differences(one, other, allowed=frozenset()):
    """Leaves of `other` that differ from `one` by more than the tolerance, or are not there."""
    return [
        name
        for name, value in other.items()
        if name not in allowed and not torch.allclose(one[name].double(), value.double(), rtol=TOLERANCE, atol=TOLERANCE)
    ]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_state_and_metrics_are_those_of_one_process(world_size):
    cases = [(optimizer, SPLITS[world_size], {}) for optimizer in scenarios.OPTIMIZERS]
    by_rank = run_ranks(world_size, scenarios.train_many, cases)
    for number, (optimizer, _, changes) in enumerate(cases):
        state, metrics = alone(optimizer, changes)
        for results in by_rank:
            shared_state, shared_metrics = results[number]
            assert differences(shared_state, state, {"counters.global_step_count"}) == [], optimizer
            assert shared_state["counters.global_step_count"] == world_size * state["counters.step_count"]
            allowed = REPORTED_ELSEWHERE if "window" in optimizer else set()
            assert [differences(a, b, allowed) for a, b in zip(shared_metrics, metrics, strict=True)] == [[]] * 4, optimizer


def test_microbatches_on_two_ranks_are_those_of_one_process():
    cases = [(optimizer, SPLITS[2][:1] + SPLITS[2][3:], {"microbatches": 3}) for optimizer in ("gated", "window")]
    by_rank = run_ranks(2, scenarios.train_many, cases)
    for number, (optimizer, splits, _) in enumerate(cases):
        batches = [scenarios.samples(12, seed) for seed in range(len(splits))]
        own = scenarios.training(optimizer)
        state, _ = scenarios.run_steps(own.step, own.init(), batches)
        assert [differences(results[number][0], scenarios.plain(state), {"counters.global_step_count"}) for results in by_rank] == [[], []]


def test_ranks_hold_the_same_bits_and_a_second_run_gives_them_again():
    cases = [("gated", SPLITS[3], {}), ("gated", SPLITS[3], {})]
    by_rank = run_ranks(3, scenarios.train_many, cases)
    first = by_rank[0][0][0]
    assert all(torch.equal(first[name], state[name]) for results in by_rank for state, _ in results for name in first)


@pytest.mark.parametrize(
    ("capture", "splits"),
    [("aot_eager", SPLITS[2]), pytest.param("dynamo", SPLITS[2][:1] * 2, marks=pytest.mark.slow)],
    ids=["trace", "dynamo"],
)
def test_a_captured_step_gives_the_numbers_of_the_eager_one_though_ranks_capture_at_different_times(capture, splits):
    cases = [("gated", splits, {}, backend) for backend in (None, capture)]
    for eager, captured in run_ranks(2, scenarios.train_many, cases):
        assert differences(captured[0], eager[0]) == []


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_energies_and_forces_of_shared_molecules_are_those_of_one_process(backend):
    whole, whole_metrics = molecules.trained(ps.distributed.Topology(), [range(5)])
    assert whole["counters.step_count"] == 2
    for state, metrics in run_ranks(2, molecules.trained, [(0, 1, 2), (3, 4)], backend):  # the second rank knows no energy
        assert differences(state, whole, {"counters.global_step_count"}) == []
        assert [differences(a, b) for a, b in zip(metrics, whole_metrics, strict=True)] == [[], []]


def test_any_split_gives_the_numbers_of_one_process():
    random = np.random.default_rng(0)
    cuts = [np.sort(random.integers(0, 13, size=2)).tolist() for _ in range(20)]
    splits = [((0, a), (a, b), (b, 12)) for a, b in cuts]
    state, _ = scenarios.run_steps((own := scenarios.training("gated")).step, own.init(), [scenarios.samples(12, i) for i in range(20)])
    for ((shared, _),) in run_ranks(3, scenarios.train_many, [("gated", splits, {})]):
        # twenty updates, each of which may carry on what the one before rounded
        assert differences(shared, scenarios.plain(state), {"counters.global_step_count"}) == []


@pytest.mark.slow
def test_a_step_compiled_by_inductor_gives_the_numbers_of_the_eager_one():
    cases = [("gated", SPLITS[2][:1] * 2, {}, backend) for backend in (None, "inductor")]
    for eager, compiled in run_ranks(2, scenarios.train_many, cases, timeout_seconds=240, wait_seconds=200):
        assert differences(compiled[0], eager[0]) == []
