"""Collectives and bytes of a step are those that docs/scaling.md says."""

import math

import pytest
import torch

from tests.distributed import scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed

LEAVES = [(130, 3), (130,), (64, 130), (64,), (1, 64), (1,)]  # of the model, float64
ELEMENTS = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in LEAVES)
SUMS = ("sum", 16)  # numerator and denominator of one term
GRADIENTS = ("sum", 8 * (ELEMENTS + len(LEAVES)))  # with a flag for each leaf, whether a rank reaches it
LEAF_FLAGS = ("sum", 8 * len(LEAVES))


PART = ("gather", 8 * (ELEMENTS - 1) // 2)  # on two ranks: half of all but the single number, which is not cut
SCATTERED = ("scatter", 8 * (ELEMENTS + 1))  # that number travels to each rank
NORMS = ("sum", 16 * len(LEAVES))  # and as many flags


@pytest.mark.parametrize(
    ("optimizer", "changes", "options", "steps"),
    [
        ("adamw", {}, {}, [[SUMS, GRADIENTS]] * 2),
        ("clipped", {}, {}, [[SUMS, GRADIENTS]] * 2),
        ("adamw", {"microbatches": 3}, {}, [[SUMS, GRADIENTS]] * 2),
        ("window", {}, {}, [[SUMS], [SUMS, GRADIENTS]] * 2),
        ("gated window", {}, {}, [[SUMS, LEAF_FLAGS], [SUMS, LEAF_FLAGS, GRADIENTS]] * 2),
        ("adamw", {}, {"shard_state": "optimizer"}, [[SUMS, GRADIENTS, PART]] * 2),
        ("adamw", {}, {"shard_state": "gradients"}, [[SUMS, SCATTERED, NORMS, PART]] * 2),
        ("window", {}, {"shard_state": "gradients"}, [[SUMS, SCATTERED], [SUMS, SCATTERED, NORMS, PART]] * 2),
        ("adamw", {}, {"shard_state": "parameters"}, [[PART, SUMS, SCATTERED, NORMS]] * 2),
        ("window", {}, {"shard_state": "parameters"}, [[PART, SUMS, SCATTERED], [PART, SUMS, SCATTERED, NORMS]] * 2),
    ],
    ids=[
        "plain",
        "gated and clipped",
        "microbatches",
        "window",
        "gated window",
        "stage 1",
        "stage 2",
        "stage 2 window",
        "stage 3",
        "stage 3 window",
    ],
)
def test_a_step_communicates_what_the_formula_says(optimizer, changes, options, steps):
    assert run_ranks(2, scenarios.traffic_of, optimizer, changes, len(steps), options) == [steps] * 2


def test_a_simulated_world_of_1024_sends_and_holds_what_the_formula_says():
    ((held, seen),) = run_ranks(1, scenarios.in_a_simulated_world, 1024)
    elements = 4096 * 9
    gradients, part, scattered, norms = (
        ("sum", 4 * (elements + 2)),
        ("gather", 4 * elements // 1024),
        ("scatter", 4 * elements),
        ("sum", 16 * 2),
    )
    assert seen == {
        "nothing": [SUMS, gradients],
        "optimizer": [SUMS, gradients, part],
        "gradients": [SUMS, scattered, norms, part],
        "parameters": [part, SUMS, scattered, norms],
    }
    moments = 2 * 4 * elements
    few = held["nothing"][1] - moments  # counts and hyperparameters
    assert 0 < few < 200
    assert held == {
        "nothing": (4 * elements, few + moments),
        "optimizer": (4 * elements, few + moments // 1024),
        "gradients": (4 * elements, few + moments // 1024),
        "parameters": (4 * elements // 1024, few + moments // 1024),
    }


def test_leaves_of_one_dtype_travel_together_and_narrow_ones_as_float32():
    for summed, seen, norm in run_ranks(3, scenarios.mixed_dtypes):
        assert seen == [("sum", 4 * (4 + 3 + 4)), ("sum", 8)]
        # three equal bfloat16 numbers are added in float32 and rounded once
        half = (3 * torch.tensor(0.1).bfloat16().float()).bfloat16()
        expected = {"complex": 3 + 6j, "half": half, "scalar": 3.0, "single": 3.0}
        assert [name for name, leaf in summed.items() if not torch.equal(leaf, torch.ones_like(leaf) * expected[name])] == []
        assert norm == pytest.approx(math.sqrt(2 * 45 + 3 * float(half) ** 2 + 9 + 4 * 9), rel=1e-12)
