"""`finetune init`, and runs that start from weights."""

import json
import os
from pathlib import Path

import pytest
import torch

from purestep.checkpoint import load_params
from purestep.spec.building import build
from purestep.spec.reading import check_text, read_spec
from purestep.spec.starting import first_state
from purestep.testing import assert_trees_equal
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

INIT = ["--dataset", "shipped:g2", "--output-dir", "second", "--out", "second.json"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_first():
    Path("first.json").write_text(text_of(changed(**{"output/run_dir": "first", "strategy/num_steps": 1})))
    assert purestep("spec", "run", "first.json", "--progress", "none").exit_code == 0


def test_a_spec_that_starts_from_a_run_has_its_model_and_starts_at_its_weights():
    run_first()
    assert purestep("finetune", "init", "first", *INIT, "--trainable", "*", "--freeze", "embed*", "--num-steps", 1).exit_code == 0
    spec = read_spec("second.json")
    assert spec.strategy.model_specs == read_spec("first/spec.json").strategy.model_specs
    assert json.loads(Path("second.json").read_text())["strategy"]["loss"][0] == {"kind": "EnergyMAELoss"}  # defaults are left out
    pieces = build(spec)
    state, report = first_state(spec, pieces.training)
    assert_trees_equal(dict(state.params), load_params("first/checkpoints"))
    assert (report.kept, report.unused, int(state.counters.step_count)) == ((), (), 0)
    frozen = {name for name in state.params if name not in pieces.training.trainable}
    assert frozen and all(name.startswith("embed") for name in frozen)


def test_a_run_that_starts_from_weights_leaves_frozen_ones_as_they_are():
    run_first()
    purestep("finetune", "init", "first/checkpoints", *INIT, "--freeze", "embed*", "--num-steps", 1, "--batch-size", 4)
    words = ["--set", "dataset.split=validation", "--progress", "none"]
    done = purestep("spec", "run", "second.json", *words)
    assert done.exit_code == 0, done.output
    assert "loaded, 0 begin anew" in done.stderr
    before, after = load_params("first/checkpoints"), load_params("second/checkpoints")
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith("embed")}
    assert purestep("spec", "resume", "second", "--progress", "none").exit_code == 0


def test_weights_of_no_run_need_a_model():
    Path("w.safetensors").write_bytes(b"")
    done = purestep("finetune", "init", "w.safetensors", *INIT)
    assert "fill strategy.model_specs" in done.stderr
    spec = json.loads(Path("second.json").read_text())
    assert (spec["workflow"], spec["source"], spec["strategy"]["model_specs"]) == ("finetune", {"checkpoint_path": "w.safetensors"}, {})
    os.remove("second.json")
    purestep("finetune", "init", "w.safetensors", *INIT, "--model", "my.Net", "--load", "body.*")
    spec = json.loads(Path("second.json").read_text())
    assert spec["strategy"]["model_specs"] == {"main": {"cls_path": "my.Net"}}
    assert spec["source"]["patterns"] == ["body.*"]


def test_weights_that_are_not_there_are_a_problem_of_paths():
    assert purestep("finetune", "init", "none", *INIT).exit_code == 4
    Path("spec.json").write_text(text_of(changed(workflow="finetune", source={"checkpoint_path": "none"})))
    assert "PS304 /source/checkpoint_path" in purestep("spec", "run", "spec.json").stderr
    assert not os.path.exists("run")


def test_weights_that_do_not_fit_are_refused_with_all_differences():
    run_first()
    words = ["--set", "strategy.model_specs.main.hidden_size=16", "--set", "dataset.split=test", "--progress", "none"]
    purestep("finetune", "init", "first", *INIT)
    done = purestep("spec", "run", "second.json", *words)
    assert done.exit_code == 4
    assert "differences" in done.stderr and "shape" in done.stderr


def test_a_report_says_that_a_run_starts_from_weights_and_from_which():
    Path("spec.json").write_text(text_of(changed(workflow="finetune", source={"checkpoint_path": "first"})))
    lines = purestep("spec", "report", "spec.json").stdout.splitlines()
    assert lines[0].startswith("tiny · finetune · ")
    assert f"  weights    {os.path.join(os.getcwd(), 'first')}" in lines


def test_the_template_of_a_finetuning_is_a_spec():
    assert check_text(purestep("schema", "template", "--workflow", "finetune").stdout).problems == ()


def test_nothing_is_written_over():
    Path("second.json").write_text("mine")
    Path("w.pt").write_bytes(b"")
    assert purestep("finetune", "init", "w.pt", *INIT).exit_code == 4
    assert Path("second.json").read_text() == "mine"
