"""`purestep runs`: logs of real trainings, tiny ones."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.cli import documents
from purestep.metrics import ForceErrors
from purestep.reporting import JsonlWriter
from purestep.validation import Validation
from tests.cli.calling import purestep

BATCHES = [torch.full((4, 3), 0.1 * i) for i in range(1, 6)]


def train(run_dir, learning_rate, status="finished", **facts):
    """A run of two epochs with a log and a status."""
    os.makedirs(run_dir)
    torch.manual_seed(0)
    training = ps.Training(
        nn.Linear(3, 1), loss=lambda p, b: (p - 1.0).square().mean(), forward=lambda m, b: m(b), optimizer=ps.sgd(learning_rate)
    )
    log = JsonlWriter(f"{run_dir}/metrics.jsonl", every_n_batches=1)
    ps.fit(training, BATCHES, num_epochs=2, validation=Validation(BATCHES[:1], every_n_epochs=1), listeners=[log])
    documents.write(f"{run_dir}/status.json", {"schema": "purestep.status/1", "status": status, **facts})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        yield tmp_path


@pytest.fixture
def two_runs():
    train("runs/slow", 0.01)
    train("runs/sweep/fast", 0.1, "failed", exit_code=7, reason="no update was applied")


def test_list_finds_runs_inside_of_directories(two_runs):
    title, *rows = purestep("runs", "list").stdout.splitlines()
    assert title.split() == ["run", "status", "updates", "epochs", "loss", "validated", "best", "written"]
    assert [row.split()[:2] for row in rows] == [["runs/slow", "finished"], ["runs/sweep/fast", "failed"]]
    assert "failed (7)" in rows[1]


def test_list_as_json_has_the_numbers_of_the_log(two_runs):
    document = json.loads(purestep("runs", "list", "./runs/slow", "runs", "--json").stdout)
    slow, fast = document["runs"]  # each once, though named twice
    assert [slow["run_dir"], fast["run_dir"]] == ["runs/slow", "runs/sweep/fast"]
    lines = [json.loads(line) for line in Path("runs/slow/metrics.jsonl").read_text().splitlines()]
    assert (slow["step"], slow["batch"], slow["epoch"]) == (10, 10, 2)
    assert slow["validated"] == lines[-1]["validation/loss/total"] == slow["best"]
    assert (fast["exit_code"], fast["reason"]) == (7, "no update was applied")
    assert fast["loss"] < slow["loss"]


def test_a_run_that_has_written_nothing_yet_is_listed_and_not_drawn(two_runs):
    os.makedirs("runs/new")
    documents.write("runs/new/run.json", {"schema": "purestep.run-record/1"})
    assert "runs/new" in purestep("runs", "list", "runs").stdout
    done = purestep("runs", "plot", "runs", "--out", "all.png")
    assert (done.exit_code, "runs/new: nothing is logged yet" in done.stderr) == (0, True)


def test_plot_draws_what_was_asked_for_once(two_runs, here):
    done = purestep("runs", "plot", "runs", "--out", "all.png", "--metric", "update/grad_norm", "--against", "epoch")
    assert (done.exit_code, done.stdout) == (0, f"{here / 'all.png'}\n")
    assert Path("all.png").read_bytes().startswith(b"\x89PNG")
    content = Path("all.png").read_bytes()
    assert purestep("runs", "plot", "runs", "--out", "all.png").exit_code == 4
    assert Path("all.png").read_bytes() == content


def test_plot_writes_a_page_where_the_name_says_so(two_runs, here):
    done = purestep("runs", "plot", "runs", "--out", "all.html")
    assert (done.exit_code, done.stdout) == (0, f"{here / 'all.html'}\n")
    page = Path("all.html").read_text()
    assert page.count("data:image/png;base64,") == 2  # the loss, trained and validated
    assert "<td>slow</td>" in page and f"<td>{os.path.join('sweep', 'fast')}</td>" in page


def test_plot_as_json_has_the_curves_of_the_logs(two_runs, here):
    document = json.loads(purestep("runs", "plot", "runs", "--json", "--metric", "loss/total", "--against", "step").stdout)
    lines = [json.loads(line) for line in Path("runs/slow/metrics.jsonl").read_text().splitlines()]
    logged = [(line["step"], line["loss/total"]) for line in lines if "loss/total" in line]
    slow, fast = document["runs"]
    assert (slow["run_dir"], fast["run_dir"], document["out"]) == ("runs/slow", "runs/sweep/fast", None)
    curve = slow["curves"]["loss/total"]
    assert list(zip(curve["step"], curve["value"], strict=True)) == logged and len(logged) == 10
    both = json.loads(purestep("runs", "plot", "runs", "--json", "--out", "all.png").stdout)
    assert both["out"] == str(here / "all.png") and os.path.exists("all.png")


def test_plot_in_the_terminal_has_a_line_for_each_curve(two_runs):
    done = purestep("runs", "plot", "runs", "--metric", "loss/total")
    title, slow, fast = done.stdout.splitlines()
    assert title.split() == ["loss/total", "first", "last", "least", "batches"]
    lines = [json.loads(line) for line in Path("runs/slow/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss/total"] for line in lines if "loss/total" in line]
    name, drawn, *numbers = slow.split(maxsplit=5)
    assert (name, numbers) == ("slow", [*(f"{loss:.4g}" for loss in (losses[0], losses[-1], min(losses))), "1 to 10"])
    assert len(drawn) == 10 and (drawn[0], drawn[-1]) == ("█", "▁")
    assert fast.split()[0] == os.path.join("sweep", "fast")
    assert os.listdir(".") == ["runs"]


@pytest.mark.parametrize("words", [["--out", "all.svg"], ["--out", "all"]], ids=str)
def test_plot_without_a_place_that_it_can_write_is_a_wrong_command_line(two_runs, words):
    assert purestep("runs", "plot", "runs", *words).exit_code == 2
    assert os.listdir(".") == ["runs"]


def test_plot_names_the_metrics_that_there_are(two_runs):
    done = purestep("runs", "plot", "runs", "--out", "x.png", "--metric", "accuracy")
    assert (done.exit_code, os.path.exists("x.png")) == (4, False)
    assert "no run has a finite value of 'accuracy'" in done.stderr and "validation/loss/total" in done.stderr


@pytest.mark.parametrize(
    "words", [["list"], ["list", "nowhere"], ["plot", "nowhere", "--out", "x.png"], ["plot", ".", "--out", "x.png"]], ids=" ".join
)
def test_directories_without_runs_are_a_problem_of_paths(words):
    done = purestep("runs", *words)
    assert (done.exit_code, done.stdout) == (4, "")


def test_an_empty_directory_lists_no_run():
    done = purestep("runs", "list", ".", "--json")
    assert (done.exit_code, json.loads(done.stdout)["runs"]) == (0, [])


def test_the_metric_of_the_help_of_plot_is_one_that_validation_gives():
    assert "--metric validation/forces/mae_ev_per_angstrom " in purestep("runs", "plot", "--help").stdout
    errors = ForceErrors()
    assert "forces/mae_ev_per_angstrom" in errors.result(errors.empty())
