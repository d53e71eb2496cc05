import json
import math

import pytest
import torch

import purestep as ps
from purestep.core.hook import Stage
from purestep.errors import DataError
from purestep.reporting import JsonlWriter, read_metrics

from .events import PowerCut, ask_to_stop, cut_power, event, keep_states


def fit_whole(training, batches, validation, path):
    ps.fit(training, batches, num_epochs=4, validation=validation, listeners=[JsonlWriter(path, every_n_batches=3)])
    return read_metrics(path)


@pytest.mark.parametrize(("checkpoint", "cut"), [(12, 17), (17, 17), (10, 12), (10, 25), (9, 10), (20, 21)])
def test_a_run_that_lost_its_power_and_resumed_has_the_log_of_one_that_never_stopped(
    training, batches, validation, tmp_path, checkpoint, cut
):
    whole = fit_whole(training, batches, validation, tmp_path / "whole.jsonl")
    path, states = tmp_path / "metrics.jsonl", {}
    first = [JsonlWriter(path, every_n_batches=3), keep_states(states), cut_power(after=cut)]
    with pytest.raises(PowerCut):
        ps.fit(training, batches, num_epochs=4, validation=validation, listeners=first)
    ps.fit(
        training,
        batches,
        state=states[checkpoint],
        num_epochs=4,
        validation=validation,
        listeners=[JsonlWriter(path, every_n_batches=3)],
    )
    assert read_metrics(path) == whole


@pytest.mark.parametrize("stop", [12, 17, 20])
def test_a_run_that_was_asked_to_stop_and_resumed_has_the_log_of_one_that_never_stopped(training, batches, validation, tmp_path, stop):
    whole = fit_whole(training, batches, validation, tmp_path / "whole.jsonl")
    path = tmp_path / "metrics.jsonl"
    log = JsonlWriter(path, every_n_batches=3)
    stopped = ps.fit(training, batches, num_epochs=4, validation=validation, listeners=[log, ask_to_stop(after=stop)])
    ps.fit(training, batches, state=stopped.state, num_epochs=4, validation=validation, listeners=[log])
    assert read_metrics(path) == whole


def test_resuming_only_appends(training, batches, tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonlWriter(path, every_n_batches=3)
    ps.fit(training, batches, num_steps=10, listeners=[log])
    before = path.read_bytes()
    ps.fit(training, batches, num_steps=20, listeners=[log])
    assert path.read_bytes().startswith(before)


def test_every_attempt_is_kept_with_its_number_and_time(training, batches, tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonlWriter(path, every_n_batches=5, clock=lambda: 12.5)
    ps.fit(training, batches, num_steps=10, listeners=[log])
    ps.fit(training, batches, num_steps=10, listeners=[log])
    lines = read_metrics(path, attempts=True)
    assert [(line["attempt"], line["kind"], line["batch"]) for line in lines] == [
        (1, "start", 0),
        (1, "train", 5),
        (1, "train", 10),
        (2, "start", 0),
        (2, "train", 5),
        (2, "train", 10),
    ]
    assert {line["wall"] for line in lines} == {12.5}


def test_a_metric_that_is_not_finite_is_null_and_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = {"loss/total": torch.tensor(math.nan), "norm": torch.tensor(math.inf), "lr": torch.tensor(0.1, dtype=torch.float64)}
    JsonlWriter(path, every_n_batches=1)(event(batch=1, metrics=metrics))
    refuse = pytest.fail
    lines = [json.loads(text, parse_constant=refuse) for text in path.read_text().splitlines()]
    assert lines[-1]["loss/total"] is None
    assert lines[-1]["norm"] is None
    assert lines[-1]["lr"] == 0.1
    assert lines[-1]["nonfinite"] == ["loss/total", "norm"]


def test_a_validated_metric_that_is_not_finite_is_null_and_named_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    seen = event(Stage.AFTER_VALIDATION, batch=1, validation={"loss/total": -math.inf, "mae": 0.5})
    JsonlWriter(path, every_n_batches=1)(seen)
    line = json.loads(path.read_text().splitlines()[-1], parse_constant=pytest.fail)
    assert (line["validation/loss/total"], line["validation/mae"], line["nonfinite"]) == (None, 0.5, ["validation/loss/total"])


def test_a_line_that_a_dying_process_left_half_written_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonlWriter(path, every_n_batches=1)
    log(event(Stage.BEFORE_TRAINING, batch=0))
    log(event(batch=1, metrics={"loss": torch.tensor(1.0)}))
    with path.open("a") as file:
        file.write('{"attempt":1,"kind":"tr')
    assert [line["batch"] for line in read_metrics(path)] == [1]
    again = JsonlWriter(path, every_n_batches=1)
    again(event(Stage.BEFORE_TRAINING, batch=1))
    again(event(batch=2, metrics={"loss": torch.tensor(2.0)}))
    assert [(line["batch"], line["loss"]) for line in read_metrics(path)] == [(1, 1.0), (2, 2.0)]


def test_a_line_that_somebody_broke_is_an_error_that_says_where(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonlWriter(path, every_n_batches=1)
    for number in (1, 2, 3):
        log(event(batch=number, metrics={"loss": torch.tensor(1.0)}))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:20], lines[3]]) + "\n")
    with pytest.raises(DataError, match="record 3 is not a line"):
        read_metrics(path)


def test_a_metric_with_the_name_of_a_field_is_refused(tmp_path):
    log = JsonlWriter(tmp_path / "metrics.jsonl", every_n_batches=1)
    with pytest.raises(ValueError, match="metric 'step' has the name of a field"):
        log(event(batch=1, metrics={"step": torch.tensor(1.0)}))


def test_a_run_that_has_nothing_to_do_leaves_no_trace(training, batches, tmp_path):
    path = tmp_path / "metrics.jsonl"
    done = ps.fit(training, batches, num_steps=10)
    ps.fit(training, batches, state=done.state, num_steps=10, listeners=[JsonlWriter(path)])
    assert not path.exists()


def test_listening_leaves_training_bitwise_alone(training, batches, validation, tmp_path, untouched_globals):
    alone = ps.fit(training, batches, num_epochs=2, validation=validation)
    heard = ps.fit(training, batches, num_epochs=2, validation=validation, listeners=[JsonlWriter(tmp_path / "m.jsonl", every_n_batches=1)])
    assert all(torch.equal(a, b) for a, b in zip(ps.tree.leaves(alone.state), ps.tree.leaves(heard.state), strict=True))


def test_a_log_that_cannot_be_written_ends_the_run(training, batches, tmp_path):
    with pytest.raises(FileNotFoundError):
        ps.fit(training, batches, num_epochs=1, listeners=[JsonlWriter(tmp_path / "nowhere" / "metrics.jsonl")])
