"""Several data sets as one: their shares, their epochs, and draws that follow from their place alone."""

import numpy as np
import pytest

from purestep.data import Joined, Loader, MixedBatches, PreparedFrames, balanced, collate, write_store
from purestep.errors import DataError
from tests.data.prefetch_samples import Numbers

SIZES = (40, 10, 100)


def source(chosen):
    return np.searchsorted(np.cumsum(SIZES), chosen, side="right")


def epoch_of(plan, epoch, world=1):
    return np.stack(
        [plan.indices(epoch, index, rank=rank, world=world)[0] for index in range(plan.num_batches(world)) for rank in range(world)]
    )


def test_joined_data_sets_stand_one_after_the_other():
    joined = Joined(Numbers(3), Numbers(2))
    assert [joined[index]["id"].item() for index in range(len(joined))] == [0, 1, 2, 0, 1]
    assert joined.sizes == (3, 2) and joined.fingerprint != Joined(Numbers(3)).fingerprint
    with pytest.raises(IndexError, match="sample 5 of 5"):
        joined[5]
    with pytest.raises(ValueError, match=r"got the sizes \[3, 0\]"):
        Joined(Numbers(3), Numbers(0))


@pytest.fixture
def stores(arrays, tmp_path):
    """Two stores with charges per atom; the second also has spins and axes per frame."""
    levels = {"charge": "atom", "spin": "frame", "axis": "frame"}
    charged = arrays | {"charge": np.arange(24.0)}
    more = {"spin": np.arange(7.0), "axis": np.ones((7, 3))}
    bare = {key: value for key, value in charged.items() if key not in ("forces", "split")}
    one = write_store(tmp_path / "one.zarr", bare, levels={"charge": "atom"})
    return one, write_store(tmp_path / "two.zarr", charged | more, levels=levels)


def test_arrays_of_the_user_go_from_joined_stores_to_the_batch(stores):
    prepared = PreparedFrames(Joined(stores[1].split("train"), stores[0]), 3.0)
    batch = collate([prepared[0], prepared[1], prepared[4 + 6]])
    assert batch["charge"].tolist() == [0, 1, 2, 3, 22, 23]
    assert batch["spin"][:2].tolist() == [0, 1] and batch["axis"][:2].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(("order", "place"), [((0, 1), 2), ((1, 0), 9)])
def test_what_only_some_joined_stores_have_is_nan_in_frames_of_the_others(stores, order, place):
    joined = Joined(*(stores[number] for number in order))
    frame = joined[place]
    assert np.isnan(frame["spin"]) and np.isnan(frame["axis"]).tolist() == [True] * 3
    assert frame["forces"].shape == (5, 3) and np.isnan(frame["forces"]).all()
    assert "split" not in frame and frame["charge"].tolist() == [4, 5, 6, 7, 8]
    assert collate(list(PreparedFrames(joined, 3.0)))["spin"].isnan().sum() == 7


def test_a_whole_number_that_only_some_joined_stores_have_is_an_error(stores, arrays, tmp_path):
    counted = write_store(tmp_path / "counted.zarr", arrays | {"shell": np.arange(7)}, levels={"shell": "frame"})
    joined = Joined(counted, stores[0])
    assert joined[3]["shell"] == 3
    with pytest.raises(DataError, match="shell: some frames have it and some do not, but int64 has no value for what is missing"):
        joined[7]


def test_joined_stores_with_different_levels_for_one_name_are_refused(stores, arrays, tmp_path):
    other = write_store(tmp_path / "other.zarr", arrays | {"charge": np.arange(7.0)}, levels={"charge": "frame"})
    with pytest.raises(DataError, match="charge: rows per frame in data set 2, but per atom in one before it"):
        Joined(*stores, other)


@pytest.mark.parametrize("replacement", ["with", "without"])
def test_each_batch_has_its_allocation(replacement):
    plan = MixedBatches(SIZES, 8, per_batch=(5, 1, 2), replacement=replacement)
    for batch in epoch_of(plan, 0):
        assert np.bincount(source(batch), minlength=3).tolist() == [5, 1, 2]


def test_weights_give_the_shares_of_the_draws():
    plan = MixedBatches((1000, 1000, 1000), 30, weights=(1.0, 2.0, 7.0), epoch="longest")
    counts = np.bincount(epoch_of(plan, 0).ravel() // 1000, minlength=3)
    expected = counts.sum() * np.array([0.1, 0.2, 0.7])
    assert ((counts - expected) ** 2 / expected).sum() < 20  # chi-square with 2 degrees of freedom: 5e-5


def test_without_replacement_samples_come_equally_often_give_or_take_one():
    plan = MixedBatches(SIZES, 8, per_batch=(4, 2, 2), epoch="longest")
    counts = np.bincount(epoch_of(plan, 1).ravel(), minlength=150)
    assert [(part.min(), part.max()) for part in np.split(counts, [40, 50])] == [(5, 5), (10, 10), (1, 1)]


def test_a_data_set_begins_again_in_another_order():
    plan = MixedBatches((50, 5), 6, per_batch=(1, 5))
    batches = epoch_of(plan, 0)[:, 1:]
    assert (np.sort(batches, axis=1) == np.arange(50, 55)).all() and len({tuple(batch) for batch in batches}) > 3


def test_with_replacement_draws_are_independent():
    plan = MixedBatches((20, 20), 10, per_batch=(5, 5), replacement="with", epoch="longest")
    counts = np.bincount(np.concatenate([epoch_of(plan, epoch).ravel() for epoch in range(200)]), minlength=40)
    expected = counts.sum() / 40
    assert ((counts - expected) ** 2 / expected).sum() < 39 + 5 * np.sqrt(2 * 39)  # chi-square, five standard deviations
    assert counts.std() > 0


@pytest.mark.parametrize(
    ("epoch", "mix", "expected"),
    [
        ("sum", {"per_batch": (4, 2, 2)}, 19),  # 150 / 8
        ("shortest", {"per_batch": (4, 2, 2)}, 5),  # 10 / 2
        ("longest", {"per_batch": (4, 2, 2)}, 50),  # 100 / 2
        ("shortest", {"weights": (0.5, 0.25, 0.25)}, 5),
        ("longest", {"weights": (2, 1, 1)}, 50),
    ],
)
def test_an_epoch_is_as_long_as_its_policy_says(epoch, mix, expected):
    assert MixedBatches(SIZES, 8, **mix, epoch=epoch).num_batches() == expected


@pytest.mark.parametrize("mix", [{"per_batch": (4, 2, 2)}, {"weights": (1, 1, 1)}], ids=str)
@pytest.mark.parametrize("replacement", ["with", "without"])
def test_batches_follow_from_seed_epoch_and_index_alone(mix, replacement):
    plan = MixedBatches(SIZES, 8, **mix, replacement=replacement, seed=3)
    later = plan.indices(4, 9)[0].tolist()
    again = MixedBatches(SIZES, 8, **mix, replacement=replacement, seed=3)
    assert again.indices(4, 9)[0].tolist() == later and again.fingerprint == plan.fingerprint
    assert plan.indices(5, 9)[0].tolist() != later
    assert MixedBatches(SIZES, 8, **mix, replacement=replacement, seed=4).indices(4, 9)[0].tolist() != later


def test_ranks_together_draw_what_one_process_would():
    one = epoch_of(MixedBatches(SIZES, 8, per_batch=(4, 2, 2), epoch="longest"), 0)
    two = epoch_of(MixedBatches(SIZES, 4, per_batch=(2, 1, 1), epoch="longest"), 0, world=2)
    assert np.array_equal(np.sort(one, axis=1), np.sort(two.reshape(-1, 8), axis=1))


def test_a_loader_draws_from_all():
    joined = Joined(Numbers(40), Numbers(10), Numbers(100))
    loader = Loader(joined, MixedBatches(joined.sizes, 6, per_batch=balanced(6, 3)))
    batches = list(loader.epoch(0))
    assert len(batches) == len(loader) == 25 and all(batch["mask"].all() for batch in batches)
    assert loader.fingerprint != Loader(joined, MixedBatches(joined.sizes, 6, weights=(1, 1, 1))).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of weights and per_batch"),
        ({"weights": (1, 1)}, "3 data sets need as many weights"),
        ({"weights": (1, 0, 1)}, "must be positive"),
        ({"per_batch": (4, 2, 1)}, r"per_batch \(4, 2, 1\) must sum to batch_size 8"),
        ({"weights": (1, 1, 1), "epoch": "all"}, "unknown epoch 'all'"),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MixedBatches(SIZES, 8, **settings)


def test_a_batch_smaller_than_the_number_of_data_sets_cannot_be_balanced():
    with pytest.raises(ValueError, match="cannot hold samples of 3 data sets"):
        balanced(2, 3)
