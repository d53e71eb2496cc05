import csv

import pytest
import torch

import purestep as ps
from purestep.errors import DataError
from purestep.reporting import CsvWriter

from .events import PowerCut, ask_to_stop, cut_power, event, keep_states


@pytest.mark.parametrize("kind", ["train", "validation"])
@pytest.mark.parametrize(("checkpoint", "cut"), [(12, 17), (10, 25)])
def test_a_run_that_lost_its_power_and_resumed_has_the_table_of_one_that_never_stopped(
    training, batches, validation, tmp_path, kind, checkpoint, cut
):
    whole, path, states = tmp_path / "whole.csv", tmp_path / "metrics.csv", {}
    ps.fit(training, batches, num_epochs=4, validation=validation, listeners=[CsvWriter(whole, kind=kind, every_n_batches=3)])
    first = [CsvWriter(path, kind=kind, every_n_batches=3), keep_states(states), cut_power(after=cut)]
    with pytest.raises(PowerCut):
        ps.fit(training, batches, num_epochs=4, validation=validation, listeners=first)
    second = [CsvWriter(path, kind=kind, every_n_batches=3)]
    ps.fit(training, batches, state=states[checkpoint], num_epochs=4, validation=validation, listeners=second)
    assert path.read_text() == whole.read_text()


def test_the_last_validation_of_a_run_that_was_asked_to_stop_goes_when_it_resumes(training, batches, validation, tmp_path):
    whole, path = tmp_path / "whole.csv", tmp_path / "metrics.csv"
    ps.fit(training, batches, num_epochs=4, validation=validation, listeners=[CsvWriter(whole, kind="validation")])
    table = CsvWriter(path, kind="validation")
    stopped = ps.fit(training, batches, num_epochs=4, validation=validation, listeners=[table, ask_to_stop(after=17)])
    ps.fit(training, batches, state=stopped.state, num_epochs=4, validation=validation, listeners=[table])
    assert path.read_text() == whole.read_text()


def test_a_table_has_one_header_and_its_values_are_exact(tmp_path):
    path = tmp_path / "metrics.csv"
    table = CsvWriter(path, every_n_batches=1)
    for number in (1, 2):
        table(event(batch=number, metrics={"loss": torch.tensor(0.1 * number, dtype=torch.float64)}))
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["batch", "step", "epoch", "final", "loss"]
    assert [(row[0], float(row[4])) for row in rows[1:]] == [("1", 0.1), ("2", 0.2)]


def test_a_record_with_other_columns_is_refused(tmp_path):
    table = CsvWriter(tmp_path / "metrics.csv", every_n_batches=1)
    table(event(batch=1, metrics={"loss": torch.tensor(1.0)}))
    with pytest.raises(DataError, match="'more' is a column or in the record of batch 2, not both"):
        table(event(batch=2, metrics={"loss": torch.tensor(1.0), "more": torch.tensor(1.0)}))


def test_a_file_that_is_not_such_a_table_is_left_alone(training, batches, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("my,own,data\n1,2,3\n")
    with pytest.raises(DataError, match="it was not written here"):
        CsvWriter(path)
    assert path.read_text() == "my,own,data\n1,2,3\n"


def test_a_table_that_cannot_be_written_is_left_with_one_warning_and_training_goes_on(training, batches, tmp_path):
    table = CsvWriter(tmp_path / "nowhere" / "metrics.csv", every_n_batches=1)
    with pytest.warns(RuntimeWarning, match="CsvWriter failed at AFTER_BATCH of batch 1, .*; CsvWriter writes nothing more") as caught:
        result = ps.fit(training, batches, num_epochs=1, listeners=[table])
    assert len(caught) == 1
    assert int(result.state.counters.step_count) == 10
