"""The loader: the same batches for everyone who asks, from anywhere, reading nothing in vain."""

import functools
import itertools

import numpy as np
import pytest
import torch

from purestep.core import tree
from purestep.data import Loader, PreparedFrames, collate, permutation, plan_padding, stack
from purestep.errors import DataError


class Recorded:
    """Numbered samples that remember what was read."""

    fingerprint = "numbers"

    def __init__(self, size):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(index)
        return {"id": torch.tensor(index), "x": torch.full((2,), float(index))}


class Listed(list):
    fingerprint = "listed"


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def counted(batch):
    return batch["id"][batch["mask"]].tolist()


def test_batches_stack_samples_in_the_order_of_the_epoch():
    batches = list(Loader(Recorded(10), 4, seed=3).epoch(2))
    order = permutation(3, 2, 10).tolist()
    assert ids(batches)[:2] == [order[:4], order[4:8]]
    assert batches[0]["x"].shape == (4, 2)


def test_the_last_batch_is_filled_up_with_samples_of_no_weight():
    *whole, last = Loader(Recorded(10), 4).epoch(0)
    assert last["mask"].tolist() == [True, True, False, False]
    assert all(batch["mask"].all() for batch in whole)


def test_starting_in_the_middle_gives_the_same_batches_and_reads_nothing_else():
    data = Recorded(100)
    rest = ids(Loader(data, 8, seed=1).epoch(5, start=9))
    assert sorted(data.read) == sorted(itertools.chain(*rest))
    assert rest == ids(Loader(Recorded(100), 8, seed=1).epoch(5))[9:]


def test_nothing_is_read_before_it_is_asked_for():
    data = Recorded(100)
    next(Loader(data, 8).epoch(0))
    assert len(data.read) == 8


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_run_on_other_ranks_sees_the_same_samples_at_each_step(world):
    loaders = [Loader(Recorded(50), 8 // world, seed=2, rank=rank, world=world) for rank in range(world)]
    steps = [list(itertools.chain(*map(counted, batches))) for batches in zip(*(loader.epoch(1) for loader in loaders), strict=True)]
    assert steps == [counted(batch) for batch in Loader(Recorded(50), 8, seed=2).epoch(1)]
    assert len({loader.fingerprint for loader in loaders}) == 1
    assert loaders[0].fingerprint == Loader(Recorded(50), 8, seed=2).fingerprint


@pytest.mark.parametrize(("last", "sizes"), [("pad", [4, 4, 4]), ("drop", [4, 4]), ("keep", [4, 4, 2])])
def test_the_end_of_an_epoch_follows_the_policy(last, sizes):
    loader = Loader(Recorded(10), 4, last=last)
    batches = list(loader.epoch(0))
    assert [len(batch["id"]) for batch in batches] == sizes and len(loader) == len(sizes)
    assert all(("mask" in batch) == (last == "pad") for batch in batches)


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 5}, {"shuffle": False}, {"last": "drop"}, {"dataset": Recorded(11)}])
def test_whatever_changes_the_batches_changes_the_fingerprint(change):
    settings = {"dataset": Recorded(10), "batch_size": 4}
    assert Loader(**settings).fingerprint != Loader(**(settings | change)).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 2, "world": 2}, r"rank must lie in \[0, world\)"),
        ({"last": "wrap"}, "last must be one of pad, drop, keep, got 'wrap'"),
        ({"last": "keep", "world": 2}, "unequal batches"),
        ({"last": "drop", "batch_size": 11}, "leaves nothing"),
        ({"dataset": []}, "the dataset is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Loader(**({"dataset": Recorded(10), "batch_size": 4} | settings))


def test_a_batch_past_the_end_is_an_error():
    with pytest.raises(IndexError, match="batch 3 of an epoch with 3 batches"):
        Loader(Recorded(10), 4).batch(0, 3)


def test_loading_leaves_the_global_generators_alone():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(Loader(Recorded(10), 4).epoch(0))
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])


def test_frames_of_atoms_come_as_batches_of_atoms(frames):
    prepared = PreparedFrames(Listed(frames), 3.0)
    batches = list(Loader(prepared, 4, collate=collate).epoch(0))
    assert [batch.graph_mask.tolist() for batch in batches] == [[True] * 4, [True] * 3 + [False]]
    assert [batch.num_graphs for batch in batches] == [4, 4]


def test_padded_batches_of_an_epoch_have_one_shape(frames):
    prepared = PreparedFrames(Listed(frames), 3.0)
    loader = Loader(prepared, 2, collate=functools.partial(collate, pad_to=plan_padding(prepared, 2, num_sizes=1)))
    shapes = {tuple(leaf.shape for leaf in tree.leaves(batch)) for epoch in range(3) for batch in loader.epoch(epoch)}
    assert len(shapes) == 1


def test_stack_takes_arrays_and_numbers():
    batch = stack([{"x": np.ones(3), "y": 1}, {"x": np.zeros(3), "y": 2}])
    assert batch["x"].shape == (2, 3) and batch["y"].tolist() == [1, 2]


def test_samples_of_unlike_shapes_are_refused_with_a_hint_at_collate():
    ragged = [{"x": torch.ones(length)} for length in (2, 3)]
    with pytest.raises(DataError, match=r"batch 0 of epoch 0, samples .*give a collate=fn\(samples, mask\) that pads"):
        Loader(ragged, 2).batch(0, 0)
