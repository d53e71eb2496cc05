"""The order of samples: every sample once, anywhere to enter, the same for any number of ranks."""

import numpy as np
import pytest

from purestep.data import batch_indices, index_at, num_batches, permutation


@pytest.mark.parametrize("size", range(1, 101))
def test_every_epoch_holds_every_sample_once(size):
    for epoch in range(5):
        assert np.array_equal(np.sort(permutation(7, epoch, size)), np.arange(size))


@pytest.mark.parametrize("size", [1000, 1024, 10_007])
def test_larger_epochs_hold_every_sample_once(size):
    assert np.array_equal(np.sort(permutation(0, 0, size)), np.arange(size))


def test_a_position_can_be_looked_up_alone():
    whole = permutation(3, 2, 1000)
    assert index_at(3, 2, 777, 1000) == whole[777]
    assert np.array_equal(index_at(3, 2, np.array([[5, 1], [9, 999]]), 1000), whole[[[5, 1], [9, 999]]])


def test_huge_data_sets_need_no_memory():
    positions = np.arange(10**15, 10**15 + 1000)
    chosen = index_at(0, 0, positions, 10**15 + 2000)
    assert len(set(chosen.tolist())) == 1000 and chosen.max() < 10**15 + 2000
    assert np.diff(np.sort(chosen)).max() > 10**10


@pytest.mark.parametrize("other", [(0, 1), (1, 0), (2**40, 0), (-1, 0)])
def test_other_seeds_and_epochs_have_other_orders(other):
    # two independent orders of 1000 samples agree in one place on average, in ten with a chance of 1e-7
    assert (permutation(0, 0, 1000) == permutation(*other, 1000)).sum() < 10


def test_seed_and_epoch_are_not_interchangeable():
    assert (permutation(1, 2, 1000) == permutation(2, 1, 1000)).sum() < 10


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_every_sample_comes_equally_often_to_every_position(size):
    epochs = 4000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), permutation(11, epoch, size)] += 1
    # chi-square with (size - 1)^2 degrees of freedom, five of its standard deviations
    expected, freedom = epochs / size, (size - 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_all_orders_of_four_samples_are_equally_likely():
    epochs = 12_000
    orders = [tuple(permutation(5, epoch, 4).tolist()) for epoch in range(epochs)]
    counts = np.array([orders.count(order) for order in sorted(set(orders))])
    assert len(counts) == 24
    expected = epochs / 24
    assert ((counts - expected) ** 2 / expected).sum() < 23 + 5 * np.sqrt(2 * 23)


def test_neighbouring_samples_are_torn_apart():
    steps = np.abs(np.diff(permutation(0, 0, 10_000)))
    assert abs(steps.mean() / 10_000 - 1 / 3) < 0.01  # mean distance of two uniform numbers: 1/3 +- 0.0024


def test_positions_outside_the_epoch_are_refused():
    with pytest.raises(ValueError, match=r"must lie in \[0, 10\), got 3 \.\. 10"):
        index_at(0, 0, np.array([3, 10]), 10)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_together_see_each_sample_once_whatever_their_number(world):
    size, batch_size = 103, 8 // world
    seen = []
    for index in range(num_batches(size, batch_size, world)):
        for rank in range(world):
            chosen, real = batch_indices(1, 4, index, batch_size, size, rank=rank, world=world)
            assert chosen.shape == real.shape == (batch_size,)
            seen.extend(chosen[real].tolist())
    assert seen == permutation(1, 4, size).tolist()


def test_a_world_larger_than_the_data_fills_up_with_samples_of_no_weight():
    parts = [batch_indices(0, 0, 0, 2, 3, rank=rank, world=4) for rank in range(4)]
    assert [real.tolist() for _, real in parts] == [[True, True], [True, False], [False, False], [False, False]]
    assert all((chosen < 3).all() for chosen, _ in parts)


def test_without_shuffling_samples_come_as_they_are_stored():
    chosen, real = batch_indices(0, 0, 1, 4, 6, shuffle=False)
    assert chosen.tolist() == [4, 5, 0, 1] and real.tolist() == [True, True, False, False]


@pytest.mark.parametrize(("last", "expected"), [("pad", 4), ("keep", 4), ("drop", 3)])
def test_the_policy_decides_on_the_end_of_the_epoch(last, expected):
    assert num_batches(13, 4, last=last) == expected
    assert num_batches(12, 4, last=last) == 3
