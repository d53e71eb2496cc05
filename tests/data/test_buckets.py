"""Batches by budget: every sample once, never too much, from anywhere; and sizes to pad to that waste little."""

import numpy as np
import pytest

from purestep.data import BudgetBatches, Loader, PreparedFrames, collate, plan_buckets, shipped
from purestep.data.padding import sizes_of
from purestep.errors import DataError

SIZES = np.random.default_rng(0).integers(2, 15, 300)


def epoch_of(plan, epoch, world=1):
    return [plan.indices(epoch, index, rank=rank, world=world) for index in range(plan.num_batches(world)) for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("budget", [14, 40, 100, 5000])
def test_every_sample_comes_once_and_no_batch_exceeds_the_budget(budget, world):
    batches = epoch_of(BudgetBatches(SIZES, budget, seed=1), 3, world)
    counted = np.concatenate([chosen[real] for chosen, real in batches])
    assert sorted(counted.tolist()) == list(range(300))
    assert max(SIZES[chosen[real]].sum() for chosen, real in batches) <= budget
    assert all(len(chosen) for chosen, _ in batches)


def test_batches_hold_nearly_equally_much():
    totals = [SIZES[chosen].sum() for chosen, _ in epoch_of(BudgetBatches(SIZES, 200), 0)]
    assert max(totals) - min(totals) <= 2 * SIZES.max()


def test_batches_follow_from_seed_epoch_and_index_alone():
    one, other = BudgetBatches(SIZES, 60, seed=2), BudgetBatches(SIZES, 60, seed=2)
    later = one.indices(5, 7)[0].tolist()
    assert later == other.indices(5, 7)[0].tolist() and one.fingerprint == other.fingerprint
    assert later != one.indices(6, 7)[0].tolist() and later != BudgetBatches(SIZES, 60, seed=3).indices(5, 7)[0].tolist()
    assert one.fingerprint != BudgetBatches(SIZES, 61, seed=2).fingerprint


def test_a_sample_beyond_the_budget_is_an_error():
    with pytest.raises(DataError, match="sample 1 alone holds 9, the budget of a batch is 8"):
        BudgetBatches([3, 9, 2], 8)


@pytest.fixture(scope="module")
def molecules():
    return PreparedFrames(shipped("g2").split("train"), 5.0)


@pytest.mark.parametrize("kind", ["count", "atoms", "edges"])
def test_six_sizes_waste_at_most_a_tenth_of_the_shipped_molecules(molecules, kind):
    _, atoms, edges = np.array([sizes_of([frame]) for frame in molecules]).T
    batches = {"count": 32, "atoms": BudgetBatches(atoms, 250), "edges": BudgetBatches(edges, 8000)}[kind]
    plan = plan_buckets(molecules, batches, num_sizes=6)
    assert len(plan.sizes) <= 6
    assert plan.waste.atoms <= 0.10 and plan.waste.edges <= 0.10


def test_the_stated_waste_is_that_of_the_batches(molecules):
    _, atoms, _ = np.array([sizes_of([frame]) for frame in molecules]).T
    batches = BudgetBatches(atoms, 400)
    plan = plan_buckets(molecules, batches, num_sizes=4, num_epochs=2)
    loader = Loader(molecules, batches, collate=lambda frames, mask: collate(frames, mask, pad_to=plan.sizes))
    found = [*loader.epoch(0), *loader.epoch(1)]
    assert 1 - sum(int(b.atom_mask.sum()) for b in found) / sum(len(b.numbers) for b in found) == pytest.approx(plan.waste.atoms)
    assert 1 - sum(int(b.edge_mask.sum()) for b in found) / sum(len(b.edge_mask) for b in found) == pytest.approx(plan.waste.edges)
    assert sum(plan.uses) == len(found) and "of edges" in str(plan)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_size_holds_the_batches_of_any_order(molecules, seed):
    _, atoms, _ = np.array([sizes_of([frame]) for frame in molecules]).T
    plan = plan_buckets(molecules, BudgetBatches(atoms, 150), num_sizes=3, num_epochs=1)
    loader = Loader(
        molecules, BudgetBatches(atoms, 150, seed=seed + 10), collate=lambda frames, mask: collate(frames, mask, pad_to=plan.sizes)
    )
    assert len({tuple(batch.edge_mask.shape) for batch in loader.epoch(0)}) <= 3


def test_one_size_holds_everything(molecules):
    plan = plan_buckets(molecules, 32, num_sizes=1)
    assert len(plan.sizes) == 1 and plan.sizes[0].graphs == 33
    with pytest.raises(ValueError, match="num_sizes must be at least 1"):
        plan_buckets(molecules, 32, num_sizes=0)


def test_a_plan_of_batches_has_a_seed_of_its_own(molecules):
    with pytest.raises(ValueError, match="has its own seed"):
        Loader(molecules, BudgetBatches(SIZES, 60), seed=3)
