"""Stopping after any batch and continuing from the checkpoint in another run equals never stopping, bit for bit."""

import dataclasses

import pytest

import purestep as ps
from purestep.checkpoint import list_checkpoints, load
from purestep.core.event import Stop
from purestep.core.hook import Stage
from tests.checkpoint.resuming import NUM_BATCHES, NUM_EPOCHS, make_run, run, stop_after


@pytest.mark.parametrize("stop", range(1, NUM_EPOCHS * NUM_BATCHES + 1))
def test_stopping_after_any_batch_changes_nothing(tmp_path, whole, assert_same, stop):
    """Batches in the middle of a window, before and after a validation, at the end of an epoch, the last."""
    _, first = run(tmp_path, stop_after(stop))
    state, second = run(tmp_path)
    assert_same(state, whole[0])
    assert first + second == whole[1]


@pytest.mark.parametrize(
    ("stage", "batch"),
    [
        (Stage.BEFORE_TRAINING, 0),
        (Stage.BEFORE_EPOCH, 7),
        (Stage.AFTER_VALIDATION, 6),
        (Stage.AFTER_VALIDATION, 12),
        (Stage.AFTER_EPOCH, 7),
        (Stage.AFTER_EPOCH, 14),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_stopping_at_any_other_moment_changes_nothing(tmp_path, whole, assert_same, stage, batch):
    _, first = run(tmp_path, lambda event: Stop("asked") if (event.stage, event.batch_count) == (stage, batch) else None)
    state, second = run(tmp_path)
    assert_same(state, whole[0])
    assert first + second == whole[1]


def test_stopping_three_times_changes_nothing(tmp_path, whole, assert_same):
    lines = []
    for stop in (2, 3, 9, None):
        state, more = run(tmp_path, stop_after(stop))
        lines += more
    assert_same(state, whole[0])
    assert lines == whole[1]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_checkpoint_of_a_run_leads_to_the_same_end(tmp_path, whole, assert_same, every):
    run(tmp_path / "root", every_n_steps=every)
    training, batches, validation = make_run()
    found = list_checkpoints(tmp_path / "root")
    assert len(found) > 1
    for checkpoint in found:
        state = load(checkpoint.path, training.init(3))
        assert_same(ps.fit(training, batches, state=state, num_epochs=NUM_EPOCHS, validation=validation).state, whole[0])


def test_a_finished_run_does_nothing_when_it_is_run_again(tmp_path, whole, assert_same):
    run(tmp_path)
    before = [checkpoint.manifest for checkpoint in list_checkpoints(tmp_path)]
    state, lines = run(tmp_path)
    assert_same(state, whole[0])
    assert lines == []
    assert [checkpoint.manifest for checkpoint in list_checkpoints(tmp_path)] == before


def test_the_sample_log_of_a_whole_run_has_every_sample_once_an_epoch(whole):
    order = [index for _, _, indices, *_ in whole[1] for index in indices]
    assert sorted(order[:25]) == sorted(order[25:]) == list(range(25))
    assert order[:25] != order[25:]


def test_the_state_of_the_run_holds_all_that_it_should(whole):
    state = whole[0]
    assert {"ema"} == set(state.hook_state)
    assert int(state.counters.batch_count) == NUM_EPOCHS * NUM_BATCHES
    assert dataclasses.is_dataclass(state)
