import pytest
import torch

from purestep.core.hook import Stage
from purestep.reporting import Recorder

from .events import event


class Untouchable(dict):
    """Metrics that nobody may read."""

    def items(self):
        raise AssertionError("metrics were read between two records")


def test_a_recorder_reads_metrics_only_when_a_record_is_due():
    recorder = Recorder(every_n_batches=5)
    assert [recorder(event(batch=number, metrics=Untouchable(loss=1.0))) for number in (1, 2, 3, 4)] == [[]] * 4
    with pytest.raises(AssertionError, match="were read"):
        recorder(event(batch=5, metrics=Untouchable(loss=1.0)))


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_constant_loss_is_recorded_as_it_is_whatever_the_interval(interval):
    recorder = Recorder(every_n_batches=interval)
    records = [record for number in range(1, 11) for record in recorder(event(batch=number, metrics={"loss": torch.tensor(4.0)}))]
    assert [record.values["loss"] for record in records] == [4.0] * (10 // interval)
    assert [record.batch for record in records] == list(range(interval, 11, interval))


def test_the_record_of_a_batch_is_made_before_a_checkpoint_at_its_validation_could_be_written():
    recorder = Recorder(every_n_batches=5)
    moment = {"batch": 5, "metrics": {"loss": torch.tensor(1.0)}}
    validated = recorder(event(Stage.AFTER_VALIDATION, validation={"loss/total": 2.0}, **moment))
    assert [record.kind for record in validated] == ["train", "validation"]
    assert recorder(event(Stage.AFTER_BATCH, **moment)) == []


def test_a_validation_that_is_made_because_the_run_ends_is_final():
    (record,) = Recorder()(event(Stage.AFTER_VALIDATION, batch=3, validation={"loss/total": 1.0}, stop_reason="num_steps"))
    assert record.final


def test_a_validation_at_its_cadence_is_not_final():
    recorder = Recorder()
    recorder(event(Stage.AFTER_BATCH, batch=2))
    (of_batch,) = recorder(event(Stage.AFTER_VALIDATION, batch=3, validation={"loss/total": 1.0}))
    recorder(event(Stage.AFTER_BATCH, batch=3))
    (of_epoch,) = recorder(event(Stage.AFTER_VALIDATION, batch=3, epoch=1, validation={"loss/total": 1.0}))
    assert not of_batch.final
    assert not of_epoch.final


def test_an_interval_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Recorder(every_n_batches=0)
