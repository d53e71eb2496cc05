"""The writer of a run as a listener: saves at the right moments of the loop, and only there."""

import dataclasses
import time

import pytest
import torch

from purestep.checkpoint import Checkpointer, disk, list_checkpoints, load
from purestep.core.event import Event
from purestep.core.hook import Stage
from purestep.errors import CheckpointSaveError


def labels(root):
    return [found.manifest.label for found in list_checkpoints(root)]


def event_of(state, stage=Stage.AFTER_BATCH, **fields):
    counters = {name: int(getattr(state.counters, name)) for name in ("batch_count", "epoch_count", "epoch_step_count")}
    return Event(stage=stage, state=state, step_bound=counters["batch_count"], **counters | fields)


def counted(state, batch, step, epoch=0):
    numbers = {"batch_count": batch, "step_count": step, "epoch_count": epoch}
    counters = dataclasses.replace(state.counters, **{name: torch.tensor(value) for name, value in numbers.items()})
    return dataclasses.replace(state, counters=counters)


def test_it_saves_on_the_transition_and_never_while_the_counter_is_parked(tmp_path, make_state):
    state = make_state(1)
    steps = [0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7]
    with Checkpointer(tmp_path, every_n_steps=2, keep_last=99) as writer:
        writer(event_of(counted(state, 0, 0), Stage.BEFORE_TRAINING))
        for batch, step in enumerate(steps, start=1):
            writer(event_of(counted(state, batch, step)))
    assert labels(tmp_path) == [3, 7, 10]


def test_after_a_resume_at_a_multiple_it_does_not_save_the_same_step_again(tmp_path, make_state):
    state = make_state(1)
    with Checkpointer(tmp_path, every_n_steps=2) as writer:
        writer(event_of(counted(state, 5, 4), Stage.BEFORE_TRAINING))
        writer(event_of(counted(state, 6, 4)))
        writer(event_of(counted(state, 7, 5)))
        assert labels(tmp_path) == []
        writer(event_of(counted(state, 8, 6)))
    assert labels(tmp_path) == [8]


def test_it_does_not_look_at_the_device_unless_a_save_can_be_due(tmp_path, make_state):
    state = make_state(1)

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("looked at the state")

    with Checkpointer(tmp_path, every_n_steps=10) as writer:
        writer(event_of(counted(state, 0, 0), Stage.BEFORE_TRAINING))
        for batch in range(1, 10):
            writer(Event(Stage.AFTER_BATCH, Untouchable(), batch_count=batch, epoch_count=0, epoch_step_count=batch, step_bound=batch))
        with pytest.raises(AssertionError, match="looked"):
            writer(Event(Stage.AFTER_BATCH, Untouchable(), batch_count=10, epoch_count=0, epoch_step_count=10, step_bound=10))


def test_metrics_of_step_and_validation_rank_checkpoints_under_their_own_names(tmp_path, make_state):
    state = counted(make_state(1), 2, 2)
    metrics = {"loss/total": torch.tensor(0.5), "vector": torch.ones(3), "word": "x"}
    with Checkpointer(tmp_path, every_n_steps=2, keep_best="validation/loss/total", keep_last=1) as writer:
        writer(event_of(state, Stage.AFTER_VALIDATION, metrics=metrics, validation={"loss/total": 0.25}))
        assert labels(tmp_path) == []
        writer(event_of(state, metrics=metrics, validation={"loss/total": 0.25}))
        writer(event_of(counted(state, 4, 4), metrics=metrics, validation={"loss/total": 0.75}))
        writer(event_of(counted(state, 6, 6), metrics=metrics))
    assert labels(tmp_path) == [2, 6]
    assert list_checkpoints(tmp_path)[0].manifest.metrics == {"loss/total": (0.5).hex(), "validation/loss/total": (0.25).hex()}


def test_closing_an_epoch_with_an_update_of_its_own_replaces_the_checkpoint_of_the_last_batch(tmp_path, make_state, assert_same):
    batch_end, epoch_end = counted(make_state(1), 4, 2), counted(make_state(2), 4, 3, epoch=1)
    with Checkpointer(tmp_path, every_n_steps=1) as writer:
        writer(event_of(counted(make_state(1), 3, 1), Stage.BEFORE_TRAINING))
        writer(event_of(batch_end))
        writer(event_of(epoch_end, Stage.AFTER_EPOCH))
    assert labels(tmp_path) == [4]
    assert_same(load(tmp_path, make_state(0)), epoch_end)


def test_epochs_seconds_and_the_end_have_their_own_moments(tmp_path, make_state, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    state = make_state(1)
    with Checkpointer(tmp_path, every_n_epochs=2, every_seconds=60, keep_last=99) as writer:
        writer(event_of(counted(state, 0, 0), Stage.BEFORE_TRAINING))
        writer(event_of(counted(state, 1, 1)))
        writer(event_of(counted(state, 1, 1, epoch=1), Stage.AFTER_EPOCH))
        writer(event_of(counted(state, 2, 2, epoch=2), Stage.AFTER_EPOCH))
        clock[0] += 59
        writer(event_of(counted(state, 3, 3, epoch=2)))
        clock[0] += 1
        writer(event_of(counted(state, 4, 4, epoch=2)))
        writer(event_of(counted(state, 5, 5, epoch=2)))
        writer(event_of(counted(state, 5, 5, epoch=2), Stage.AFTER_TRAINING, target={"num_steps": 5}))
        writer(event_of(counted(state, 5, 5, epoch=2), Stage.AFTER_TRAINING, target={"num_steps": 5}))
    assert [(found.manifest.label, found.manifest.reason) for found in list_checkpoints(tmp_path)] == [
        (2, "periodic"),
        (4, "periodic"),
        (5, "final"),
    ]


def test_only_the_checkpoint_of_a_complete_run_stays_for_ever(tmp_path, make_state):
    state = make_state(1)
    with Checkpointer(tmp_path, keep_last=1) as writer:
        for batch, target in ((1, {"num_epochs": 2}), (2, {"num_steps": 2}), (3, {"num_epochs": 9})):
            writer(event_of(counted(state, batch, batch, epoch=1), Stage.AFTER_TRAINING, target=target))
    assert [(found.manifest.label, found.manifest.reason) for found in list_checkpoints(tmp_path)] == [(2, "final"), (3, "periodic")]


def test_a_failure_in_the_background_stops_the_run_at_the_next_event(tmp_path, make_state, monkeypatch):
    def broken(fd):
        raise OSError(5, "Input/output error")

    writer = Checkpointer(tmp_path, every_n_steps=1)
    monkeypatch.setattr(disk, "sync", broken)
    writer(event_of(counted(make_state(1), 1, 1)))
    while not writer._pending.done():
        time.sleep(0.001)
    with pytest.raises(CheckpointSaveError, match="Input/output"):
        writer(event_of(counted(make_state(1), 2, 1)))
    writer.close()
