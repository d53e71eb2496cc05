import io
import itertools
import json
import math
import re

import pytest
import torch

import purestep as ps
from purestep.core.hook import Stage
from purestep.reporting import LINE, ConsoleProgress, JsonlWriter, read_metrics
from purestep.reporting.displays import can_redraw
from purestep.reporting.jsonl import WALL_CLOCK
from purestep.reporting.meter import num_samples

from .events import PowerCut, cut_power, event

METRICS = {"loss/total": torch.tensor(1.8421), "optimizer/adam/lr": torch.tensor(4e-4), "update/grad_norm": torch.tensor(3.14)}


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


def ticking(seconds):
    return itertools.count(step=seconds).__next__


def test_a_plain_line_has_step_loss_rate_norm_speed_and_time_to_go():
    file = io.StringIO()
    clock = iter([0.0, 2.0, 2.0]).__next__  # the first batch, the report, its line
    progress = ConsoleProgress(every_n_batches=101, mode="plain", file=file, clock=clock, unit="frames")
    for number in (1, 101):
        progress(event(batch=number, metrics=METRICS, target={"num_steps": 301}, data=torch.zeros(32, 3)))
    seen = 32 / 2.0  # the first batch is in no rate, so 32 frames in 2 s
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\d step 101/301  loss 1\.842  lr 4\.00e-04  grad 3\.14  {seen:.0f} frames/s  eta 4s\n", file.getvalue()
    )


def test_plain_lines_are_whole_and_carry_no_control_characters(training, batches, validation):
    file = io.StringIO()
    progress = ConsoleProgress(every_n_batches=1, file=file, seconds_between_lines=0.0)
    ps.fit(training, batches, num_epochs=2, validation=validation, listeners=[progress])
    lines = file.getvalue().splitlines()
    assert len(lines) == 22
    assert all(re.match(r"\d\d:\d\d:\d\d (epoch [12]/2  step|step) \d+", line) for line in lines)
    assert set(file.getvalue()).isdisjoint("\r\x1b")


def test_plain_lines_keep_their_distance_and_the_last_report_is_written():
    file = io.StringIO()
    progress = ConsoleProgress(every_n_batches=1, mode="plain", file=file, seconds_between_lines=100.0, clock=ticking(1.0))
    for number in range(1, 11):
        progress(event(batch=number, metrics=METRICS))
    progress(event(Stage.AFTER_TRAINING, batch=10))
    assert re.findall(r"step (\d+)", file.getvalue()) == ["1", "10"]


def test_metrics_are_not_read_between_reports():
    class Untouchable(dict):
        def items(self):
            raise AssertionError("read")

    progress = ConsoleProgress(every_n_batches=10, mode="plain", file=io.StringIO())
    for number in range(1, 10):
        progress(event(batch=number, metrics=Untouchable(METRICS)))


def test_a_loss_that_is_not_a_number_is_shown_as_it_is():
    file = io.StringIO()
    ConsoleProgress(every_n_batches=1, mode="plain", file=file)(event(metrics={**METRICS, "loss/total": torch.tensor(float("nan"))}))
    assert "loss nan" in file.getvalue()


def test_a_terminal_gets_a_live_line_and_is_left_in_order(monkeypatch, training, batches):
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    progress = ConsoleProgress(every_n_batches=1, file=file)
    with pytest.raises(PowerCut), progress:
        ps.fit(training, batches, num_epochs=2, listeners=[progress, cut_power(after=3)])
    assert "step 3" in file.getvalue()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert file.getvalue().rindex(shown) > file.getvalue().rindex(hidden)


def test_no_colour_is_used_where_none_is_wanted(monkeypatch, training, batches):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    file = Terminal()
    ps.fit(training, batches, num_epochs=1, listeners=[ConsoleProgress(every_n_batches=1, file=file)])
    assert re.search(r"\x1b\[[0-9;]*(3[0-7]|38;)[0-9;]*m", file.getvalue()) is None


@pytest.mark.parametrize(("term", "expected"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch, term, expected):
    monkeypatch.setenv("TERM", term)
    assert can_redraw(Terminal()) is expected
    assert not can_redraw(io.StringIO())


def test_the_mode_none_writes_nothing(training, batches):
    file = io.StringIO()
    ps.fit(training, batches, num_epochs=1, listeners=[ConsoleProgress(mode="none", every_n_batches=1, file=file)])
    assert file.getvalue() == ""


def test_the_mode_json_writes_the_lines_of_the_log_and_notes(training, batches, validation, tmp_path):
    file, log = io.StringIO(), JsonlWriter(tmp_path / "m.jsonl", every_n_batches=5)
    with ConsoleProgress(mode="json", title="mine", every_n_batches=5, file=file) as progress:
        progress.note("half-way")
        ps.fit(training, batches, num_epochs=1, validation=validation, listeners=[log, progress])
    note, *lines = [json.loads(text, parse_constant=pytest.fail) for text in file.getvalue().splitlines()]
    assert note == {"title": "mine", "kind": "note", "text": "half-way"}
    assert {line["title"] for line in lines} == {"mine"} and "training/eta_s" in lines[1]
    shown = [{name: value for name, value in line.items() if name not in ("title", *WALL_CLOCK)} for line in lines]
    assert shown == read_metrics(log.path)


def test_the_mode_json_has_null_for_what_is_no_number():
    file = io.StringIO()
    ConsoleProgress(every_n_batches=1, mode="json", file=file)(event(metrics={**METRICS, "loss/total": torch.tensor(-math.inf)}))
    line = json.loads(file.getvalue(), parse_constant=pytest.fail)
    assert line["loss/total"] is None and line["nonfinite"] == ["loss/total"]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be one of auto, rich, plain, json, none, got 'fancy'"):
        ConsoleProgress(mode="fancy")


def test_samples_are_counted_from_shapes():
    graphs = ps.AtomicBatch(torch.zeros(3, 3), torch.ones(3), torch.tensor([0, 0, 1]), torch.tensor([0, 2, 3]))
    assert [num_samples(batch) for batch in (graphs, {"x": torch.zeros(5, 2)}, torch.zeros(()))] == [2, 5, 1]


def test_metrics_of_a_validation_are_shown_under_the_names_given():
    file = io.StringIO()
    progress = ConsoleProgress(mode="plain", file=file, validation_metrics={"energy/mae": "energy eV", "absent": "nothing"})
    progress(event(Stage.AFTER_VALIDATION, batch=7, validation={"loss/total": 0.5, "energy/mae": 0.25, "forces/mae": 3.0}))
    assert file.getvalue().endswith(" step 7  validation loss 0.5  energy eV 0.25\n")


def test_a_note_stands_on_a_line_of_its_own_above_the_live_one(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    with ConsoleProgress(every_n_batches=1, layout=LINE, file=file) as progress:
        progress(event(metrics=METRICS))
        progress.note("half-way")
    assert re.search(r"\x1b\[2Khalf-way *\n", file.getvalue())


@pytest.mark.parametrize("target", [{"num_steps": 13}, {"num_epochs": 2}])
def test_the_last_line_of_training_is_of_the_last_step_and_before_the_last_validation(training, batches, validation, target):
    file = io.StringIO()
    progress = ConsoleProgress(every_n_batches=3, mode="plain", file=file, seconds_between_lines=1e9)
    result = ps.fit(training, batches, validation=validation, listeners=[progress], **target)
    *_, trained, validated = file.getvalue().splitlines()
    last = int(result.state.counters.step_count)
    assert re.search(rf"step {last}(/13)?  loss", trained) and "eta 0s" in trained
    assert f"step {last}  validation" in validated


def test_a_run_without_validation_ends_with_the_line_of_its_last_step(training, batches):
    file = io.StringIO()
    ps.fit(
        training, batches, num_epochs=1, listeners=[ConsoleProgress(every_n_batches=3, mode="plain", file=file, seconds_between_lines=1e9)]
    )
    assert re.search(r"epoch 1/1  step 10  loss", file.getvalue().splitlines()[-1])


@pytest.mark.parametrize("mode", ["plain", "json", "rich"])
def test_a_console_whose_reader_has_gone_takes_nothing_from_the_run(training, batches, mode, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    class Gone(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError("nobody reads this")

    told = pytest.warns(RuntimeWarning, match="BrokenPipeError: nobody reads this; ConsoleProgress writes nothing more")
    with told as caught, ConsoleProgress(every_n_batches=1, mode=mode, file=Gone()) as progress:
        result = ps.fit(training, batches, num_epochs=1, listeners=[progress])
    assert len(caught) == 1
    assert int(result.state.counters.step_count) == 10
