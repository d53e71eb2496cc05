"""What a run tells besides its log: other sinks, a page at the end, a profile, other layouts of the console."""

import csv
import json
import os
import re
import sys
from pathlib import Path

import pytest

from purestep.cli.spec import page as purestep_page
from purestep.cli.spec.sinks import check_installed, writers_of
from purestep.reporting import mlflow, trackio, wandb
from purestep.spec.reading import check_text
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

WANDB = {"kind": "wandb", "project": "p"}
MLFLOW = {"kind": "mlflow", "tracking_uri": "sqlite:///m.db", "experiment": "e"}
TRACKIO = {"kind": "trackio", "project": "p"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, **changes):
    Path("spec.json").write_text(text_of(changed(**{"output/checkpoints": None} | changes)))
    return purestep("spec", "run", "spec.json", *words)


def spec_of(*sinks):
    return check_text(text_of(changed(**{"output/sinks": list(sinks)}))).spec


def test_sinks_are_written_in_the_directory_of_the_run():
    sinks = [{"kind": "csv"}, {"kind": "csv", "records": "validation"}, {"kind": "tensorboard", "histograms": ["params.*"]}]
    assert run("--progress", "none", "--no-report", **{"output/sinks": sinks}).exit_code == 0
    rows = {name: list(csv.DictReader(Path("run", name).read_text().splitlines())) for name in ("train.csv", "validation.csv")}
    assert [row["batch"] for row in rows["train.csv"]] == ["1", "2", "3"]
    assert [row["final"] for row in rows["validation.csv"]] == ["1"]
    assert len(os.listdir("run/tensorboard")) == 1


@pytest.mark.parametrize("sink", [WANDB, MLFLOW, TRACKIO, {"kind": "tensorboard"}], ids=lambda sink: sink["kind"])
def test_a_sink_that_is_not_installed_is_refused_with_its_extra_before_anything_is_made(sink, monkeypatch):
    monkeypatch.setitem(sys.modules, sink["kind"], None)
    done = run("--progress", "none", **{"output/sinks": [sink]})
    assert done.exit_code == 6
    assert f"pip install 'purestep[{sink['kind']}]'" in done.stderr
    assert not os.path.exists("run")


def test_wandb_on_line_without_a_key_is_refused(monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr("purestep.reporting.trackers.require", lambda module, extra: None)
    with pytest.raises(Exception, match="WANDB_API_KEY"):
        check_installed(spec_of({**WANDB, "mode": "online"}))


def test_a_run_that_is_taken_up_again_has_the_same_identity_at_its_trackers(here, monkeypatch):
    for module in (wandb, mlflow, trackio):
        monkeypatch.setattr(module, "require", lambda module, extra: None)
    first, *_ = writers_of(spec_of(WANDB, MLFLOW, TRACKIO), str(here))
    record = json.loads(Path("run.json").read_text())
    Path("run.json").write_text(json.dumps({"trackers": {**record["trackers"], "mlflow": "m-1"}}))
    again, local, _ = writers_of(spec_of(WANDB, MLFLOW, TRACKIO), str(here))
    assert first._options["id"] == again._options["id"] == record["trackers"]["wandb"]
    assert (local.run_id, again._options["dir"], again._options["mode"]) == ("m-1", str(here), "offline")


def test_a_page_is_written_at_the_end_with_curves_schedule_predictions_and_facts():
    assert run("--progress", "none").exit_code == 0
    page = Path("run/report.html").read_text()
    for heading in ("Learning curves", "Planned learning rate", "Predicted against true", "Errors by element", "Facts"):
        assert f">{heading}</h2>" in page
    assert "<title>tiny</title>" in page and "runtime.deterministic" in page


def test_a_page_that_cannot_be_written_leaves_the_run_done(monkeypatch):
    def fail(*arguments):
        raise OSError("no room")

    monkeypatch.setattr(purestep_page, "_write", fail)
    done = run("--progress", "none")
    assert done.exit_code == 0
    assert "report.html was not written: OSError: no room" in done.stderr
    assert json.loads(Path("run/status.json").read_text())["status"] == "finished"


def test_predictions_that_cannot_be_kept_do_not_end_the_run(capsys):
    def fail(**seen):
        raise ValueError("a shape")

    kept = purestep_page.Predictions(fail)
    kept(batch=None)
    kept(batch=None)
    assert kept.collect is None
    assert capsys.readouterr().err == "report.html will be without predictions: ValueError: a shape\n"


def test_without_a_page_nothing_is_drawn():
    run("--progress", "none", "--no-report")
    assert not os.path.exists("run/report.html")


def test_batches_can_be_profiled():
    often = {"output/checkpoints": {"every_n_steps": 1}, "validation": {"every_n_steps": 1}}
    done = run("--progress", "none", "--no-report", "--profile", "1:3", **often)
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir("run/trace")) == ["profile.txt", "trace.json.gz"]
    text = Path("run/trace/profile.txt").read_text()
    table, memory = text.split("\n\n")[1], text.split("\n\n")[-1]
    times = {name: int(count) for name, count in re.findall(r"^(\S.*?) +(\d+) +[\d.]+ +[\d.]+ +[\d.]+%$", table, flags=re.MULTILINE)}
    assert text.startswith("2 batches in ")
    assert (times["data"], times["step"], times["validation"]) == (2, 2, 2)
    assert {"listener JsonlWriter", "listener Checkpointer"} <= times.keys()
    assert "state.opt_state" in memory and "host, peak" in memory


def test_progress_can_be_lines_of_json():
    lines = [json.loads(line) for line in run("--progress", "json", "--no-report").stderr.splitlines() if line.startswith("{")]
    assert [(line["title"], line["kind"], line["step"]) for line in lines] == [
        *(("tiny", "train", step) for step in (1, 2, 3)),
        ("tiny", "validation", 3),
    ]


@pytest.mark.parametrize("batches", ["3", "2:2", "a:b"])
def test_what_is_no_range_of_batches_is_a_wrong_command_line(batches):
    assert run("--profile", batches).exit_code == 2


@pytest.mark.parametrize("progress", ["line", "dashboard"])
def test_a_layout_of_a_terminal_is_plain_lines_where_there_is_none(progress):
    done = run("--progress", progress, "--no-report")
    assert done.exit_code == 0
    assert "tiny: step 3/3" in done.stderr


def test_a_report_says_what_ends_a_run_earlier_and_where_metrics_go():
    ends = {"early_stopping": {"patience": 3}, "target_metric": {"metric": "loss/total", "target": 0.1}}
    checkpoints = {"every_seconds": 60.0}
    values = {f"strategy/{name}": value for name, value in ends.items()} | {"output/sinks": [TRACKIO], "output/checkpoints": checkpoints}
    Path("spec.json").write_text(text_of(changed(**values)))
    text = purestep("spec", "report", "spec.json").stdout
    assert "ends       after 3 validations without a better loss/total or when loss/total is 0.1" in text
    assert "sinks      trackio" in text
    assert "checkpoints every 60 s, keep 3" in text


def test_the_status_says_how_often_the_step_was_compiled_and_why():
    compiled = {"runtime/compile": {"backend": "eager", "on_recompile": "ignore"}}
    assert run("--progress", "none", "--no-report", **compiled).exit_code == 0
    captures = json.loads(Path("run/status.json").read_text())["captures"]
    assert captures["count"] == 3  # batches of three sizes
    assert captures["reasons"][0] == "first call"
    assert all("positions was float32" in reason for reason in captures["reasons"][1:])
    assert captures["seconds"] > 0


def test_a_step_that_is_not_compiled_has_nothing_to_say_of_it():
    assert run("--progress", "none", "--no-report").exit_code == 0
    assert "captures" not in json.loads(Path("run/status.json").read_text())


def test_a_run_that_must_not_compile_again_ends_with_7_and_the_reason():
    done = run("--progress", "none", "--no-report", **{"runtime/compile": {"backend": "eager", "on_recompile": "error"}})
    status = json.loads(Path("run/status.json").read_text())
    assert (done.exit_code, status["status"], status["exit_code"], status["captures"]["count"]) == (7, "failed", 7, 1)
    assert "needs capture number 2" in status["reason"] and "pad batches to few sizes" in done.stderr


def test_a_run_whose_parameters_are_lost_ends_with_7_and_says_what_would_have_kept_them():
    wild = {"strategy/update": [{"kind": "sgd", "learning_rate": 1e30}], "strategy/schedule": None, "strategy/num_steps": 1000}
    done = run("--progress", "none", "--no-report", **wild)
    status = json.loads(Path("run/status.json").read_text())
    assert (done.exit_code, status["exit_code"]) == (7, 7), done.output
    assert "is not finite, so nothing is learnt any more" in done.stderr and "skip_nonfinite()" in status["reason"]
