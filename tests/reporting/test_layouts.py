import io
import math
import re

import pytest

import purestep as ps
from purestep.loop import fit
from purestep.reporting import DASHBOARD, LINE, ConsoleProgress, JsonlWriter, Layout, preview, read_metrics
from purestep.reporting.view import Memory, example_view, keep_point, sparkline
from tests.examples_of_models import batches, training


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def tall(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("COLUMNS", "120")


def test_the_dashboard_has_progress_time_to_go_metrics_curves_and_messages():
    text = preview(DASHBOARD)
    assert "step 2000/5000" in text and "40%" in text and "eta 3m52s" in text and "412 frames/s" in text
    assert "loss/ForceMSELoss/unweighted" in text and "0.0087" in text
    assert "█" in text and "step 2000  validation loss 0.142" in text


def test_a_line_is_one_line_at_any_width():
    for width in (40, 100, 200):
        assert preview(LINE, width=width).count("\n") == 1


def test_a_layout_of_ones_own_is_drawn_and_previewed(tall):
    own = Layout(lambda view: f"<<{view.count} of {view.title}>>")
    assert preview(own) == "<<step 2000/5000 of my-model>>\n"
    file = Terminal()
    progress = ConsoleProgress(every_n_batches=5, layout=own, title="mine", file=file)
    run_with(progress)
    assert "<<step 10/10 of mine>>" in file.getvalue()


def run_with(progress, validation=None):
    fit(training(), batches(5), num_steps=10, validation=validation, listeners=[progress])


def test_a_tall_terminal_gets_the_dashboard_and_is_left_in_order(tall):
    file = Terminal()
    with ConsoleProgress(every_n_batches=5, title="mine", file=file) as progress:
        run_with(progress, ps.Validation(batches(1), every_n_steps=5))
    text = file.getvalue()
    assert "over the run" in text and "loss/total" in text and "step 10/10" in text
    assert "validation loss" in text[text.rindex("over the run") :]  # messages stand in the panel
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_dashboard_shows_the_latest_validation(tall):
    file = Terminal()
    progress = ConsoleProgress(every_n_batches=5, file=file)
    validation = ps.Validation(batches(1), every_n_steps=5)
    history = fit(training(), batches(5), num_steps=10, validation=validation, listeners=[progress]).history
    values = [f"{record['validation/loss/total']:.4g}" for record in history if "validation/loss/total" in record]
    last = file.getvalue()[file.getvalue().rindex("over the run") :]
    shown = last[last.index("validation/loss/total") :].splitlines()[0]
    assert values[-1] in shown and values[0] not in shown


def curve_of(name, text):
    """The curve in the last dashboard that was drawn."""
    row = next(line for line in text[text.rindex("over the run") :].splitlines() if f" {name} " in line)
    return re.sub(r"[^▁-█]", "", row)


def test_curves_of_a_run_that_is_taken_up_again_begin_where_the_run_began(tall, tmp_path):
    whole, first, second = Terminal(), Terminal(), Terminal()
    log = tmp_path / "metrics.jsonl"
    run_with(ConsoleProgress(every_n_batches=1, file=whole))
    progress = ConsoleProgress(every_n_batches=1, file=first)
    half = fit(training(), batches(5), num_steps=6, listeners=[JsonlWriter(log, every_n_batches=1), progress])
    progress = ConsoleProgress(every_n_batches=1, file=second, earlier=read_metrics(log))
    fit(training(), batches(5), state=half.state, num_steps=10, listeners=[progress])
    curve = curve_of("loss/total", whole.getvalue())
    assert len(curve) == 10 and curve_of("loss/total", first.getvalue()) != curve
    assert curve_of("loss/total", second.getvalue()) == curve


def test_curves_leave_out_what_a_run_makes_anew(tall):
    file = Terminal()
    lines = [{"kind": "train", "batch": batch, "step": batch, "epoch": 0, "loss/total": 1.0} for batch in range(1, 9)]
    state = fit(training(), batches(5), num_steps=5).state
    progress = ConsoleProgress(every_n_batches=1, file=file, earlier=lines)
    fit(training(), batches(5), state=state, num_steps=8, listeners=[progress])
    assert len(curve_of("loss/total", file.getvalue())) == 8


def test_metrics_that_never_change_take_no_rows_of_the_dashboard(tall):
    file = Terminal()
    run_with(ConsoleProgress(every_n_batches=2, file=file))
    text = file.getvalue()
    once, often = text[: text.index("over the run") + 2000], text[text.rindex("over the run") :]
    assert "update/applied" in once  # nobody knows yet
    assert "update/applied" not in often and "more in the log" in often


def test_a_memory_knows_what_has_never_changed():
    memory = Memory()
    memory.add({"a": 1.0, "b": 1.0, "c": math.nan})
    assert memory.constants() == set()
    memory.add({"a": 1.0, "b": 2.0, "c": math.nan, "d": 1.0})
    assert memory.constants() == {"a"}
    assert memory.metrics["b"] == 2.0


def test_a_low_terminal_gets_the_line(tall, monkeypatch):
    monkeypatch.setenv("LINES", "10")
    file = Terminal()
    run_with(ConsoleProgress(every_n_batches=5, file=file))
    assert "over the run" not in file.getvalue() and "step 10/10" in file.getvalue()


def test_a_terminal_without_block_characters_gets_plain_lines(tall):
    class Old(Terminal):
        encoding = "latin-1"

    file = Old()
    run_with(ConsoleProgress(every_n_batches=5, file=file))
    assert "\x1b" not in file.getvalue() and "step 10/10" in file.getvalue()


def test_a_sparkline_falls_with_its_values_and_is_no_wider_than_asked():
    line = sparkline([math.exp(-place / 10) for place in range(100)], width=8)
    assert line == "█▇▆▅▄▃▂▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_curve_spans_the_run_however_long_it_is():
    curve = []
    for place in range(5000):
        curve = keep_point(curve, float(place))
    assert len(curve) <= 512 and curve[0] == 0.0 and curve[-1] > 4900
    assert curve == sorted(curve)


def test_the_example_view_can_be_drawn_narrow():
    assert max(len(line) for line in preview(DASHBOARD, example_view(), width=60).splitlines()) <= 60
