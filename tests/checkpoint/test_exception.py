"""A run that fails in the user's code: its last whole state is saved, under the right name, and never as the best if it is not finite."""

import dataclasses
import logging

import pytest
import torch

import purestep as ps
from purestep.checkpoint import Checkpointer, disk, list_checkpoints, load
from purestep.core.hook import Stage
from purestep.errors import CheckpointSaveError
from tests.checkpoint.resuming import NUM_EPOCHS, make_run, run, stop_after
from tests.checkpoint.test_listener import counted, event_of

ERROR = RuntimeError("a mistake of the user")


def reasons(root):
    return [(found.manifest.label, found.manifest.reason) for found in list_checkpoints(root)]


def failing_at(batch, stage=Stage.AFTER_BATCH):
    def listener(event):
        if event.stage is stage and event.batch_count == batch:
            raise ERROR

    return listener


class FailingBatches:
    """Batches of a loader, and an error in place of one."""

    def __init__(self, batches, at):
        self.batches, self.left = batches, at

    def __len__(self):
        return len(self.batches)

    def epoch(self, number, start):
        for batch in self.batches.epoch(number, start):
            self.left -= 1
            if self.left == 0:
                raise ERROR
            yield batch


# --- in a run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 13])
def test_a_run_that_a_listener_ended_goes_on_from_the_state_before_the_error_to_the_same_end(tmp_path, whole, assert_same, batch):
    with pytest.raises(RuntimeError, match="mistake of the user"):
        run(tmp_path, failing_at(batch))
    assert all(reason == "exception" and batch - 1 <= label <= batch for label, reason in reasons(tmp_path))
    assert len(reasons(tmp_path)) == 1 or batch == 1
    assert_same(run(tmp_path)[0], whole[0])


@pytest.mark.parametrize("batch", [2, 7, 8, 12])
def test_a_run_whose_data_failed_goes_on_to_the_same_end(tmp_path, whole, assert_same, batch):
    training, batches, validation = make_run()
    with Checkpointer(tmp_path) as writer, pytest.raises(RuntimeError, match="mistake of the user"):
        listeners, source = [writer], FailingBatches(batches, batch)
        ps.fit(training, source, num_epochs=NUM_EPOCHS, seed=3, validation=validation, listeners=listeners)
    assert reasons(tmp_path) == [(batch - 1, "exception")]
    assert_same(run(tmp_path)[0], whole[0])


def test_a_failure_in_validation_loses_nothing(tmp_path, whole, assert_same):
    with pytest.raises(RuntimeError, match="mistake of the user"):
        run(tmp_path, make=run_with_broken_validation)
    assert [reason for _, reason in reasons(tmp_path)] == ["exception"]
    assert_same(run(tmp_path)[0], whole[0])


def run_with_broken_validation():
    training, batches, validation = make_run()
    return training, batches, dataclasses.replace(validation, data=BrokenAtThird(validation.data))


class BrokenAtThird:
    """Batches that fail when they are gone through for the third time."""

    def __init__(self, batches):
        self.batches, self.times = batches, 0

    def __iter__(self):
        self.times += 1
        yield from self.batches
        if self.times == 3:
            raise ERROR


def test_what_is_safe_already_is_not_written_again(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path, failing_at(5), every_n_steps=1)
    assert "periodic" in {reason for _, reason in reasons(tmp_path)}
    assert len({label for label, _ in reasons(tmp_path)}) == len(reasons(tmp_path))


def test_a_resumed_run_that_fails_at_once_leaves_the_checkpoint_it_began_from(tmp_path):
    run(tmp_path, stop_after(4))
    before = [found.manifest for found in list_checkpoints(tmp_path)]
    with pytest.raises(RuntimeError):
        run(tmp_path, failing_at(4, Stage.BEFORE_TRAINING))
    assert [found.manifest for found in list_checkpoints(tmp_path)] == before


def test_a_run_that_fails_before_its_first_batch_saves_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path, failing_at(0, Stage.BEFORE_TRAINING))
    assert reasons(tmp_path) == []


# --- told of an error ---------------------------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_saved_and_never_the_best_nor_in_the_place_of_sound_ones(tmp_path, make_state, assert_same):
    good, bad = counted(make_state(1), 3, 3), counted(make_state(2), 4, 4)
    bad.params["layer.weight"][0, 0] = float("nan")
    metrics = {"loss": torch.tensor(9.0)}
    with Checkpointer(tmp_path, every_n_steps=1, keep_last=1, keep_best="max:loss") as writer:
        writer(event_of(counted(make_state(1), 2, 2), Stage.BEFORE_TRAINING))
        writer(event_of(good, metrics={"loss": torch.tensor(1.0)}))
        writer(event_of(bad, Stage.AFTER_TRAINING, metrics=metrics, error=ERROR))
    assert [(found.manifest.reason, found.manifest.finite) for found in list_checkpoints(tmp_path)] == [
        ("periodic", True),
        ("exception", False),
    ]
    assert_same(load(tmp_path, make_state(0), step="best:max:loss"), good)
    assert (tmp_path / "best").readlink().name == "step-0000000003"
    assert_same(load(tmp_path, make_state(0)), bad)


@pytest.mark.parametrize("policy", [{}, {"keep_best": "loss"}])
def test_whether_it_is_finite_is_looked_at_whatever_the_rules(tmp_path, make_state, policy):
    state = counted(make_state(2), 4, 4)
    state.params["embed.weight"][1, 1] = float("inf")
    with Checkpointer(tmp_path, **policy) as writer:
        writer(event_of(state, Stage.AFTER_TRAINING, error=ERROR))
    assert [found.manifest.finite for found in list_checkpoints(tmp_path)] == [False]


def test_a_sound_one_may_be_the_best(tmp_path, make_state):
    with Checkpointer(tmp_path, keep_best="loss") as writer:
        writer(event_of(counted(make_state(1), 4, 4), Stage.AFTER_TRAINING, metrics={"loss": torch.tensor(1.0)}, error=ERROR))
    assert (tmp_path / "best").readlink().name == "step-0000000004"


def test_a_state_whose_save_failed_is_saved_again(tmp_path, make_state, monkeypatch, assert_same):
    def full(fd, block):
        raise OSError(28, "No space left on device")

    logging.getLogger("purestep.checkpoint").setLevel(logging.CRITICAL)
    state = counted(make_state(1), 4, 4)
    with Checkpointer(tmp_path, every_n_steps=1) as writer:
        writer(event_of(counted(make_state(1), 3, 3), Stage.BEFORE_TRAINING))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "write_all", full)
            writer(event_of(state))
            with pytest.raises(CheckpointSaveError, match="No space left"):
                writer.wait()
        writer(event_of(state, Stage.AFTER_TRAINING, error=ERROR))
    logging.getLogger("purestep.checkpoint").setLevel(logging.NOTSET)
    assert_same(load(tmp_path, make_state(0)), state)


def test_it_waits_for_the_disk_even_where_busy_saves_are_skipped(tmp_path, make_state):
    with Checkpointer(tmp_path, every_n_steps=1, on_busy="skip") as writer:
        writer(event_of(counted(make_state(1), 3, 3), Stage.BEFORE_TRAINING))
        writer(event_of(counted(make_state(1), 4, 4)))
        writer(event_of(counted(make_state(2), 5, 5), Stage.AFTER_TRAINING, error=ERROR))
        assert reasons(tmp_path) == [(4, "periodic"), (5, "exception")]


def test_a_run_stopped_before_it_got_further_leaves_the_best_checkpoint_it_began_from(tmp_path, make_state):
    state = counted(make_state(1), 4, 4)
    with Checkpointer(tmp_path, keep_best="loss") as writer:
        writer.save(state, metrics={"loss": 1.0})
    with Checkpointer(tmp_path, keep_best="loss") as writer:
        writer(event_of(state, Stage.BEFORE_TRAINING))
        writer(event_of(state, Stage.AFTER_TRAINING))
    assert [found.manifest.metrics for found in list_checkpoints(tmp_path)] == [{"loss": (1.0).hex()}]
