"""A process that is killed at any moment of a run, and the next one that continues: the same state, samples and metrics, to the bit."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from purestep.checkpoint import list_checkpoints, load
from purestep.core.hook import Stage
from purestep.reporting import StopOnSignal, read_metrics
from tests.checkpoint.faults import in_new_process
from tests.checkpoint.resuming import NUM_BATCHES, NUM_EPOCHS, make_run, run_in

LAST = NUM_BATCHES * NUM_EPOCHS


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of the run that nothing interrupts."""
    directory = tmp_path_factory.mktemp("expected")
    run_in(directory)
    return directory


@pytest.fixture
def assert_same_run(expected, assert_same):
    """Compare what two directories hold at the end: state, log of samples, lines of metrics without what the clock says."""

    def check(directory):
        like = make_run()[0].init(3)
        assert_same(load(directory / "checkpoints", like), load(expected / "checkpoints", like))
        assert (directory / "samples.txt").read_bytes() == (expected / "samples.txt").read_bytes()
        # texts of floats are exact, so equal lines are equal bits; NaN would differ from itself
        assert read_metrics(directory / "metrics.jsonl") == read_metrics(expected / "metrics.jsonl")

    return check


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Dying:
    """A listener that kills its process."""

    stage: Stage
    batch: int

    def __call__(self, event):
        if event.stage is self.stage and event.batch_count == self.batch:
            die()


class Deadly:
    """Validation batches that kill whoever goes through them for the n-th time."""

    def __init__(self, batches, at):
        self.batches, self.left = batches, at

    def __iter__(self):
        for batch in self.batches:
            yield batch
            self.left -= 1
            if self.left == 0:
                die()


def run_that_dies_in_validation(number):
    training, batches, validation = make_run()
    return training, batches, dataclasses.replace(validation, data=Deadly(validation.data, number))


def train(acknowledge, directory, listeners, make):
    run_in(directory, *listeners, make=make)


def killed(directory, *listeners, make=make_run):
    outcome = in_new_process(train, directory, listeners, make)
    assert outcome.killed, outcome.error


PLACES = [
    (Stage.AFTER_BATCH, 1),  # before anything was saved
    (Stage.AFTER_BATCH, 3),  # a window is complete, and its checkpoint may be half written
    (Stage.AFTER_BATCH, 5),  # in the middle of a window
    (Stage.AFTER_VALIDATION, 6),
    (Stage.AFTER_BATCH, 7),  # the last batch of an epoch
    (Stage.AFTER_EPOCH, 7),
    (Stage.BEFORE_EPOCH, 7),
    (Stage.AFTER_BATCH, 13),
    (Stage.AFTER_BATCH, LAST),
    (Stage.AFTER_EPOCH, LAST),
    (Stage.AFTER_TRAINING, LAST),
]


@pytest.mark.parametrize(("stage", "batch"), PLACES, ids=lambda value: getattr(value, "name", value))
def test_a_process_killed_at_any_stage_is_continued_to_the_same_end(tmp_path, assert_same_run, stage, batch):
    killed(tmp_path, Dying(stage, batch))
    run_in(tmp_path)
    assert_same_run(tmp_path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_process_killed_during_validation_is_continued_to_the_same_end(tmp_path, assert_same_run, number):
    killed(tmp_path, make=functools.partial(run_that_dies_in_validation, number))
    run_in(tmp_path)
    assert_same_run(tmp_path)


def test_processes_killed_one_after_another_are_continued_to_the_same_end(tmp_path, assert_same_run):
    for batch in (4, 5, 9, 10, LAST):
        killed(tmp_path, Dying(Stage.AFTER_BATCH, batch))
    run_in(tmp_path)
    assert_same_run(tmp_path)


def test_a_kill_costs_no_more_than_what_came_after_the_last_checkpoint(tmp_path):
    killed(tmp_path, Dying(Stage.AFTER_BATCH, 8))
    before = (tmp_path / "samples.txt").read_text().splitlines()
    label = list_checkpoints(tmp_path / "checkpoints")[-1].manifest.label
    assert len(before) == 8
    assert label >= 3
    run_in(tmp_path)
    starts = [line["batch"] for line in read_metrics(tmp_path / "metrics.jsonl", attempts=True) if line["kind"] == "start"]
    assert starts == [0, label]


def ask_to_end(acknowledge, directory, number, batch):
    def ask(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == batch:
            os.kill(os.getpid(), number)

    with StopOnSignal() as stop:
        run_in(directory, ask, stop)
    acknowledge(batch)


@pytest.mark.parametrize(
    ("number", "batch", "reason"),
    [(signal.SIGTERM, 2, "preemption"), (signal.SIGUSR1, 7, "periodic"), (signal.SIGUSR1, 12, "preemption")],  # 7 is due anyway
)
def test_a_request_to_end_saves_what_is_there_and_the_next_process_goes_on(tmp_path, assert_same_run, number, batch, reason):
    assert in_new_process(ask_to_end, tmp_path, number, batch).acknowledged == [batch]
    newest = list_checkpoints(tmp_path / "checkpoints")[-1].manifest
    assert (newest.label, newest.reason) == (batch, reason)
    run_in(tmp_path)
    assert_same_run(tmp_path)


def insist_on_the_end(acknowledge, directory):
    def insist(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == 8:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received is signal.SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)
            acknowledge(8)

    with StopOnSignal() as stop:
        run_in(directory, insist, stop)


def test_a_second_request_to_end_is_obeyed_at_once_and_costs_only_what_was_not_saved(tmp_path, assert_same_run):
    outcome = in_new_process(insist_on_the_end, tmp_path)
    assert outcome.killed, outcome.error
    assert outcome.acknowledged == []
    run_in(tmp_path)
    assert_same_run(tmp_path)


def test_processes_of_their_own_are_interrupted_from_outside_and_continued_to_the_same_end(tmp_path, assert_same_run):
    assert interrupted(tmp_path, 5, signal.SIGKILL) == -signal.SIGKILL
    assert interrupted(tmp_path, 8, signal.SIGTERM) == os.EX_TEMPFAIL
    assert list_checkpoints(tmp_path / "checkpoints")[-1].manifest.label == 8
    run_in(tmp_path)
    assert_same_run(tmp_path)


def interrupted(directory, batch, number):
    """How a process ended that got a signal after a batch."""
    command = [sys.executable, "-m", "tests.checkpoint.resuming", str(directory), str(batch)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(number)
        return process.wait(60)
