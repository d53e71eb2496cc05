"""When the device is read, and what is kept on it. Tensors on the meta device stand for it: they have no value, and reading one raises."""

import dataclasses
import io
import weakref

import pytest
import torch

from purestep.core import tree
from purestep.core.hook import Stage
from purestep.loop import StopAfterGlobalSteps, StopAfterSamples, fit
from purestep.reporting import ConsoleProgress, CsvWriter, JsonlWriter, Profile, TensorBoardWriter
from tests.examples_of_models import batches, training


class EndOfTest(Exception):
    """Raised where the test is over."""


def unreadable(value):
    return value.to("meta")


def away(state, batch):
    """A step whose results cannot be read."""
    counters = dataclasses.replace(state.counters, batch_count=state.counters.batch_count + 1)
    metrics = {"loss/total": torch.zeros(()), "optimizer/adam/lr": torch.zeros(()), "skip_nonfinite/halt": torch.ones(())}
    return dataclasses.replace(state, counters=tree.map(unreadable, counters)), tree.map(unreadable, metrics)


def end_at(batch_count):
    def listen(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == batch_count:
            raise EndOfTest

    return listen


def readers(path, every):
    return [
        JsonlWriter(path / "metrics.jsonl", every_n_batches=every),
        CsvWriter(path / "metrics.csv", every_n_batches=every),
        TensorBoardWriter(path / "tb", every_n_batches=every),
        ConsoleProgress(every_n_batches=every, mode="plain", file=io.StringIO()),
        StopAfterGlobalSteps(100),
        StopAfterSamples(10_000),
        Profile(100, 200, path),
    ]


@pytest.mark.parametrize("target", [{"num_batches": 50}, {"num_steps": 50}, {"num_epochs": 5}, {"time_budget": 1000.0}])
def test_between_reports_nothing_is_read(tmp_path, target):
    with pytest.raises(EndOfTest):
        fit(training(), batches(20), step=away, listeners=[*readers(tmp_path, every=10), end_at(9)], **target)


def test_at_a_report_the_device_is_read(tmp_path):
    with pytest.raises((RuntimeError, NotImplementedError)):
        fit(training(), batches(20), step=away, num_batches=50, listeners=[*readers(tmp_path, every=10)[:1], end_at(11)])


def test_no_state_outlives_the_step_that_follows_it():
    states, alive = [], []

    def listen(event):
        if event.stage in (Stage.SETUP, Stage.AFTER_BATCH):
            states.append(weakref.ref(event.state))
            alive.append(sum(state() is not None for state in states))

    fit(training(), batches(3), num_epochs=2, listeners=[listen])
    assert alive == [1] * 7
