"""What `shard` gives each rank of a loader, without starting any."""

import numpy as np
import pytest
import torch

import purestep as ps
from purestep.data import BudgetBatches


class Chains:
    """Samples of different sizes."""

    sizes = np.array([3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2])

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return {"x": torch.full((1,), float(index))}


def loaders(plan, world_size):
    whole = ps.Loader(Chains(), plan)
    return [ps.distributed.shard(whole, ps.distributed.Topology(rank=rank, world_size=world_size)) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 16])
def test_batches_by_a_budget_are_shared_so_that_each_sample_comes_once_an_epoch(world_size):
    ranks = loaders(BudgetBatches(Chains.sizes, budget=10, seed=3), world_size)
    assert len({len(loader) for loader in ranks}) == 1
    for epoch in range(2):
        drawn = [loader.indices(epoch, index) for loader in ranks for index in range(len(loader))]
        assert sorted(sample for chosen, real in drawn for sample in chosen[real].tolist()) == list(range(len(Chains.sizes)))
        assert all(Chains.sizes[chosen[real]].sum() <= 10 for chosen, real in drawn)


def test_ranks_without_a_sample_of_their_own_get_a_batch_of_weight_0():
    masks = [loader.batch(0, 0)["mask"] for loader in loaders(BudgetBatches(Chains.sizes, budget=40), 16)]
    assert all(len(mask) > 0 for mask in masks)
    assert sum(int(mask.sum()) for mask in masks) == len(Chains.sizes)
    assert any(not mask.any() for mask in masks)
