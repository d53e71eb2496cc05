"""Collectives and bytes of a step are those that docs/scaling.md says."""

import pytest

from tests.distributed import scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed

LEAVES = [(130, 3), (130,), (64, 130), (64,), (1, 64), (1,)]  # of the model, float64
ELEMENTS = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in LEAVES)
SUMS = ("sum", 16)  # numerator and denominator of one term
GRADIENTS = ("sum", 8 * ELEMENTS)
LEAF_FLAGS = ("sum", 8 * len(LEAVES))


def part_of(world_size):
    """Elements of the largest part, what each rank sends in a gathering."""
    return sum(-(-shape[0] // world_size) * (shape[1] if len(shape) > 1 else 1) for shape in LEAVES)


@pytest.mark.parametrize(
    ("optimizer", "changes", "options", "steps"),
    [
        ("adamw", {}, {}, [[SUMS, GRADIENTS]] * 2),
        ("clipped", {}, {}, [[SUMS, GRADIENTS]] * 2),
        ("adamw", {"microbatches": 3}, {}, [[SUMS, GRADIENTS]] * 2),
        ("window", {}, {}, [[SUMS], [SUMS, GRADIENTS]] * 2),
        ("gated window", {}, {}, [[SUMS, LEAF_FLAGS, GRADIENTS]] * 2),
        ("adamw", {}, {"shard_state": "optimizer"}, [[SUMS, GRADIENTS, ("gather", 8 * part_of(2))]] * 2),
    ],
    ids=["plain", "gated and clipped", "microbatches", "window", "gated window", "sharded state"],
)
def test_a_step_communicates_what_the_formula_says(optimizer, changes, options, steps):
    assert run_ranks(2, scenarios.traffic_of, optimizer, changes, len(steps), options) == [steps] * 2


def test_a_simulated_world_of_1024_sends_and_holds_what_the_formula_says():
    ((held, seen),) = run_ranks(1, scenarios.in_a_simulated_world, 1024)
    elements = 4096 * 9
    gradients, part = ("sum", 4 * elements), ("gather", 4 * elements // 1024)
    assert seen == [SUMS, gradients, SUMS, gradients, part]
    moments = 2 * 4 * elements
    few = held["nothing"] - moments  # counts and hyperparameters
    assert 0 < few < 200
    assert held["optimizer"] == few + moments // 1024
