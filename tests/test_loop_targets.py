"""Where a run ends, what it takes as batches, and pieces that equal one run."""

import collections
import dataclasses
import functools

import pytest
import torch

import purestep as ps
from purestep.core import tree
from purestep.errors import DataError, StallError
from purestep.loop import fit, moment, running
from tests.examples_of_models import batches, molecules, poisoned, training


def same(one, other):
    pairs = zip(tree.paths(one), tree.leaves(one), tree.leaves(other), strict=True)
    return [path for path, a, b in pairs if not torch.equal(a, b)] == []


def eventful():
    """A training with dropout, BatchNorm, a window that pieces cut open, an average, and a rate that listens to validation."""
    plateau = ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation")
    return training(optimizer=ps.chain(ps.accumulate(2), ps.adamw(1e-2), plateau), hooks=[ps.hooks.ema(0.9)], microbatches=2)


PIECES = {
    "num_batches": [3, 7, 8, 13, 20],
    "num_steps": [1, 4, 5, 9, 11],
    "num_epochs": [1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("target", sorted(PIECES))
def test_a_run_in_five_pieces_equals_one_bitwise(target):
    tr = eventful()
    rows = [{key: rows[row] for key, rows in batch.items()} for batch in batches(5) for row in range(8)]
    loader = ps.Loader(rows, 8, last="drop")  # five shuffled batches an epoch
    validation = ps.Validation(batches(1, seed=1), every_n_steps=2)
    whole = fit(tr, loader, validation=validation, **{target: PIECES[target][-1]})
    state = None
    for end in PIECES[target]:
        piece = fit(tr, loader, state=state, validation=validation, **{target: end})
        state = piece.state
    assert same(state, whole.state)
    assert piece.history[-1] == whole.history[-1]


def test_a_target_in_batches_counts_vetoed_ones_and_ends_in_the_middle_of_an_epoch():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)))
    good, bad, *rest = batches(5)
    result = fit(tr, [good, poisoned(bad), *rest], num_batches=7)
    assert result.stop_reason == "num_batches"
    assert [int(getattr(result.state.counters, name)) for name in ("batch_count", "step_count", "epoch_step_count")] == [7, 5, 2]


def test_a_target_in_batches_at_the_end_of_an_epoch_closes_it_and_a_finished_run_does_nothing():
    state = fit(training(), batches(5), num_batches=10).state
    assert [int(getattr(state.counters, name)) for name in ("epoch_count", "epoch_step_count")] == [2, 0]
    assert fit(training(), batches(5), state=state, num_batches=10).state is state


def test_a_time_budget_ends_the_run_after_a_batch_alone_or_beside_a_count(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(running, "StopAtTime", functools.partial(running.StopAtTime, clock=lambda: float(next(ticks))))
    alone = fit(training(), batches(5), time_budget=3.0)
    beside = fit(training(), batches(5), num_steps=2, time_budget=1000.0)
    assert (alone.stop_reason, int(alone.state.counters.batch_count)) == ("time_budget", 3)
    assert (beside.stop_reason, int(beside.state.counters.batch_count)) == ("num_steps", 2)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"num_batches": 1, "num_steps": 1}, "exactly one of"),
        ({}, "or a time_budget, got none of them"),
        ({"num_batches": 0}, "num_batches must be a whole number of at least 1, got 0"),
        ({"time_budget": 0.0}, "time_budget must be a positive number of seconds"),
        ({"time_budget": float("nan")}, "time_budget must be a positive number of seconds"),
    ],
)
def test_odd_targets_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        fit(training(), batches(1), **targets)


class Record(collections.namedtuple("Record", "x y")):
    """A batch of one's own."""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (batches(1)[0], r"got one dict; give a Loader, or a list of batches: \[batch\]"),
        (torch.zeros(4, 3), "got one Tensor"),
        (torch.zeros(4, 3).numpy(), "got one ndarray"),
        (molecules(), "got one AtomicBatch"),
        (Record(torch.zeros(2), torch.zeros(2)), "got one Record"),
        ("train.zarr", "got one str"),
        (lambda: batches(1), "call it and give the result in a list"),
        (7, "something to iterate over, got int"),
    ],
)
def test_what_is_one_batch_or_none_is_refused_with_the_way_out(data, message):
    with pytest.raises(TypeError, match=message):
        fit(training(), data, num_steps=1)


def test_other_containers_of_batches_are_fine():
    assert fit(training(), collections.deque(batches(2)), num_epochs=1).stop_reason == "num_epochs"
    assert fit(training(), tuple(batches(2)), num_epochs=1).stop_reason == "num_epochs"


def test_an_iterator_that_is_used_up_is_named_with_the_epochs_that_it_gave():
    with pytest.raises(DataError, match="batches is a generator, an iterator that was used up; after 1 epoch it cannot begin again"):
        fit(training(), (batch for batch in batches(2)), num_epochs=2)
    with pytest.raises(DataError, match="list_iterator, an iterator that was used up; it cannot begin again"):
        fit(training(), iter([]), num_epochs=2)
    with pytest.raises(DataError, match="list gives none in epoch 0"):
        fit(training(), [], num_epochs=2)


def test_each_batch_is_moved_to_the_device_of_the_parameters():
    seen = []
    tr = training()
    state = tr.init()
    elsewhere = dataclasses.replace(state, params=tree.to_device(state.params, "meta"))

    def step(state, batch):
        seen.append({leaf.device.type for leaf in tree.leaves(batch)})
        counters = dataclasses.replace(state.counters, batch_count=state.counters.batch_count + 1)
        return dataclasses.replace(state, counters=counters), {}

    fit(tr, batches(1), state=elsewhere, num_batches=1, step=step)
    assert seen == [{"meta"}]


def test_a_halt_is_seen_on_the_cpu_after_the_batch_that_caused_it():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(max_consecutive=2), ps.sgd(0.1)))
    seen = []
    with pytest.raises(StallError, match="skip_nonfinite asks to stop"):
        fit(tr, [poisoned(batch) for batch in batches(9)], num_epochs=1, listeners=[lambda event: seen.append(event.batch_count)])
    assert max(seen) == 1  # nobody was told of the second


def test_an_endless_epoch_whose_every_update_is_vetoed_stops_too(monkeypatch):
    monkeypatch.setattr(running, "_PATIENCE_BATCHES", 20)
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(max_consecutive=10**6), ps.sgd(0.1)))
    bad = poisoned(batches(1)[0])
    with pytest.raises(StallError, match="no update was applied in 20 batches"):
        fit(tr, iter(lambda: bad, None), num_batches=1000)


def test_the_device_is_asked_only_when_something_may_be_due(monkeypatch):
    asked = []
    monkeypatch.setattr("purestep.loop.moment.read_counters", counting(moment.read_counters, asked))
    fit(training(), batches(12), num_steps=10, validation=ps.Validation(batches(1), every_n_steps=5))
    assert asked == [0, 5, 10, 10]  # the start, the validations; the end once more


def counting(read, asked):
    def wrapped(state):
        counts = read(state)
        asked.append(counts["batch_count"])
        return counts

    return wrapped
