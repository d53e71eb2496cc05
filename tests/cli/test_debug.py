"""`purestep debug`: real steps of tiny specs, looked into."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import purestep as ps
from purestep.checkpoint import load_extra, save
from purestep.checkpoint.store import directory_name
from purestep.cli import main
from purestep.cli.debug.one_step import run_step
from purestep.cli.debug.watching import FirstNonfinite
from purestep.cli.spec.crash_dump import CrashDump
from purestep.spec.building import build
from purestep.spec.continuing import description_of
from purestep.spec.reading import document_of, read_spec
from tests.reporting.events import event
from tests.spec.examples import changed, text_of

NET = """import torch
from purestep.models import PaiNN
class Net(PaiNN):
    def forward(self, batch):
        out = super().forward(batch)
        return {**out, "energy": out["energy"] + torch.sqrt(-out["energy"].square() - 1.0)}
"""

SMALL = {
    "strategy/model_specs": {"main": {"cls_path": "purestep.models.SchNet", "hidden_size": 4, "num_layers": 1, "cutoff": 3.0}},
    "strategy/loss": [{"kind": "EnergyMAELoss"}],
    "strategy/update": [{"kind": "sgd"}],
    "strategy/hooks": [],
}
"""A step of few operations, as recording one takes milliseconds."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PURESTEP_TRUST", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def debug(*words):
    return CliRunner().invoke(main, ["debug", *(str(word) for word in words)])


def write(**changes):
    Path("spec.json").write_text(text_of(changed(**{"dataset/split": "test", "dataset/batch_size": 2, **changes})))
    return read_spec("spec.json")


def write_run(steps=1, trust=(), **changes):
    """The directory of a run of so many updates, as `spec run` leaves it; its pieces and its last state."""
    spec = write(**changes)
    pieces = build(spec, trust=trust)
    state = pieces.training.init(spec.runtime.seed)
    extra = description_of(spec, pieces.batches)
    save(f"run/checkpoints/{directory_name(0)}", state, extra=extra)
    for number in range(steps):
        state, _ = pieces.training.step(state, pieces.batches.batch(0, number))
        save(f"run/checkpoints/{directory_name(number + 1)}", state, extra=extra)
    Path("run/spec.json").write_text(json.dumps(document_of(spec)))
    return pieces, state


def files():
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


# --- compile ------------------------------------------------------------------------------------------------------


def test_compile_says_why_each_graph_was_captured():
    write(**SMALL)
    done = debug("compile", "spec.json", "--batches", 2, "--backend", "eager", "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["backend"], document["batches"]) == ("eager", 2)
    first, second = document["graphs"]
    assert (first["batch"], first["reason"], first["engine"]) == (0, "first call", "trace")
    assert (second["batch"], " on cpu, is " in second["reason"]) == (1, True)
    assert first["nodes"] > 100
    assert files() == ["spec.json"]


def test_compile_counts_one_graph_for_one_batch():
    write(**SMALL)
    done = debug("compile", "spec.json", "--batches", 1, "--backend", "eager")
    assert done.stdout.startswith("graph 1  batch 0: first call\n")
    assert done.stdout.endswith("1 graph for 1 batch\n")


def test_compile_imports_nothing_that_is_not_trusted():
    Path("stranger.py").write_text("raise SystemExit('imported')")
    write(**{"strategy/model_specs/main/cls_path": "stranger.Net"})
    done = debug("compile", "spec.json")
    assert (done.exit_code, "--trust stranger" in done.stderr) == (5, True)


# --- replay -------------------------------------------------------------------------------------------------------


def test_replay_tells_the_step_that_the_run_made_next():
    pieces, state = write_run()
    before = files()
    document = json.loads(debug("replay", "run", "--json").stdout)
    _, metrics = pieces.training.step(state, pieces.batches.batch(0, 1))
    assert document["batch"] == {"batch": 1, "step": 1, "epoch": 0, "epoch_step": 1}
    # the same step on the same state: the same bits
    assert document["metrics"] == {name: float(value) for name, value in metrics.items() if value.numel() == 1}
    assert (document["finite"], document["applied"], document["nonfinite"]) == (True, True, [])
    assert sorted(document["gradient_norms"]) == sorted(pieces.training.trainable)
    assert files() == before


def test_replay_goes_on_for_as_many_batches_as_it_is_told():
    write_run(2)
    two_on = json.loads(debug("replay", "run", "--step", 0, "--batches", 3, "--json").stdout)
    newest = json.loads(debug("replay", "run", "--json").stdout)
    assert {**two_on, "run_dir": ""} == {**newest, "run_dir": ""}


def test_replay_in_words():
    write_run(0)
    lines = debug("replay", "run").stdout.splitlines()
    assert lines[0] == "batch 0 (epoch 0, number 0), after 0 updates: the update was applied"
    assert lines[1].startswith("  loss/total")
    assert lines[-1] == "all values are finite"


def test_replay_names_leaf_and_operation_that_are_not_finite_first(here):
    (here / "nan_net.py").write_text(NET)
    sys.path.append(str(here))
    write_run(0, trust=("nan_net",), **{"strategy/model_specs/main/cls_path": "nan_net.Net"})
    done = debug("replay", "run", "--trust", "nan_net", "--batches", 5)
    assert done.exit_code == 0
    assert done.stdout.startswith("batch 0 ") and "the update was vetoed" in done.stdout  # it stops at the first, and not after five
    assert "first predictions: energy (2 of 2 values)" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("first nan: aten.sqrt.default in Net, at ") and last.endswith("nan_net.py:6")


def test_replay_says_when_the_state_itself_is_not_finite():
    pieces, state = write_run(0)
    path = f"run/checkpoints/{directory_name(1)}"
    spoilt = {name: torch.full_like(value, torch.nan) for name, value in state.params.items()}
    save(path, dataclasses.replace(state, params=spoilt), extra=description_of(read_spec("run/spec.json"), pieces.batches))
    document = json.loads(debug("replay", "run", "--step", 1, "--json").stdout)
    assert document["nonfinite"][0]["part"] == "parameters before"
    assert document["first_operation"] is None


def test_replay_of_a_run_on_other_data_is_refused():
    write_run(0)
    spec = json.loads(Path("run/spec.json").read_text())
    Path("run/spec.json").write_text(json.dumps({**spec, "dataset": {**spec["dataset"], "split": "validation"}}))
    done = debug("replay", "run")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "the run in run is not the one that was saved" in done.stderr


def test_replay_needs_the_directory_of_a_run():
    os.mkdir("empty")
    assert debug("replay", "empty").exit_code == 4


def test_looking_changes_nothing_of_a_step():
    pieces, state = write_run(1)
    batch = pieces.batches.batch(0, 1)
    plain, metrics = pieces.training.step(state, batch)
    seen = run_step(pieces.training, state, batch)
    ps.testing.assert_trees_equal((seen.after, seen.metrics), (plain, metrics))


def test_the_watch_tells_infinity_from_nan_and_forward_from_backward():
    weight = torch.zeros(2, requires_grad=True)
    with torch.autograd.set_multithreading_enabled(False), FirstNonfinite({}) as watch:
        torch.zeros(2).masked_fill(torch.tensor([True, False]), -torch.inf)  # meant: the infinity is an argument
        (grad,) = torch.autograd.grad(weight.sqrt().sum(), weight)  # 1 / (2 sqrt(0))
        _ = grad * 0.0
    assert (watch.first.operation, watch.first.value, watch.first.backward) == ("aten.div.Tensor", "inf", True)
    assert (watch.first_nan.operation, watch.first_nan.value, watch.first_nan.backward) == ("aten.mul.Tensor", "nan", False)
    assert watch.first_nan.line.partition(":")[0] == __file__


# --- a step that failed -------------------------------------------------------------------------------------------

FRAGILE = """from purestep.models import SchNet
class Net(SchNet):
    def forward(self, batch):
        if int(batch.numbers.sum()) == {total}:
            raise RuntimeError("these atoms are too many")
        return super().forward(batch)
"""


def failed_run():
    """The directory of a run whose second step failed."""
    spec = write(**SMALL)
    Path("fragile.py").write_text(FRAGILE.format(total=int(build(spec).batches.batch(0, 1).numbers.sum())))
    small = SMALL["strategy/model_specs"]["main"]
    write(**{**SMALL, "strategy/model_specs": {"main": {**small, "cls_path": "fragile.Net"}}})
    return CliRunner().invoke(main, ["spec", "run", "spec.json", "--trust", "fragile", "--progress", "none", "--no-report"])


def test_what_a_failed_step_was_given_is_kept_and_the_step_fails_again_with_it():
    done = failed_run()
    path = "run/crash/step_000000001"
    assert (done.exit_code, os.listdir("run/crash")) == (1, ["step_000000001"])
    assert f"purestep debug replay {os.path.abspath(path)}" in done.stderr
    kept = load_extra(path)
    assert "these atoms are too many" in kept["traceback"]
    assert {"torch", "numpy"} <= kept["versions"]["packages"].keys()
    again = debug("replay", path, "--trust", "fragile")
    assert again.exit_code == 1
    assert again.stderr.count("RuntimeError: these atoms are too many") == 2  # what is told of the run, and the traceback


def test_a_failed_step_that_no_longer_fails_is_told_as_any_other():
    failed_run()
    Path("fragile.py").write_text(FRAGILE.format(total=-1))
    sys.modules.pop("fragile")
    document = json.loads(debug("replay", "run/crash/step_000000001", "--trust", "fragile", "--json").stdout)
    assert (document["batch"]["batch"], document["finite"]) == (1, True)
    assert debug("replay", "run/crash/step_000000001", "--batches", 2).exit_code == 2


def test_the_newest_few_of_the_steps_that_failed_are_kept(here):
    _, state = write_run()
    dump = CrashDump(str(here / "run"), {})
    for number in range(5):
        dump(event(ps.Stage.AFTER_TRAINING, batch=number, data=state.params, error=ValueError("no")))
    assert sorted(os.listdir("run/crash")) == ["step_000000002", "step_000000003", "step_000000004"]


def test_an_error_outside_of_a_step_keeps_nothing(here):
    CrashDump(str(here), {})(event(ps.Stage.AFTER_TRAINING, error=ValueError("no")))
    assert not os.path.exists("crash")
