"""The commands around specs, as a user types them. Runs are tiny: a few frames, three updates."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from purestep.checkpoint import load
from purestep.core import tree
from purestep.reporting import read_metrics
from purestep.spec.building import build
from purestep.spec.reading import read_spec
from purestep.testing import assert_trees_equal
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

COMMANDS = [
    ["train"],
    ["train", "init"],
    ["schema", "dump"],
    ["schema", "template"],
    ["finetune"],
    ["finetune", "init"],
    *(["spec", name] for name in ("check", "report", "run", "resume", "diff", "merge", "upgrade")),
]
INIT = ["train", "init", "--dataset", "data/train.zarr", "--output-dir", "runs/one", "--out", "train.json"]
HEAVY = {"torch", "numpy", "pydantic", "zarr", "matplotlib"}
BROKEN = """from purestep.models import PaiNN
class Net(PaiNN):
    def forward(self, batch):
        raise ZeroDivisionError("of the model")
"""
STRANGER = "from torch import nn\nfrom purestep.models import PaiNN\nclass Net(PaiNN):\n    pass\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PURESTEP_TRUST", "")
    return tmp_path


def write(name="spec.json", **changes):
    Path(name).write_text(text_of(changed(**changes)))
    return name


def documents_in(directory):
    return {name: json.loads(Path(directory, name).read_text()) for name in ("spec.json", "run.json", "status.json")}


def state_of(run_dir):
    spec = read_spec(os.path.join(run_dir, "spec.json"))
    return load(os.path.join(run_dir, "checkpoints"), like=build(spec).training.init(spec.runtime.seed))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_is_short_and_loads_nothing_heavy(words):
    script = "import sys\nfrom purestep.cli import main\nmain(sys.argv[1:], standalone_mode=False)\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *words, "--help"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) <= 40
    assert HEAVY.isdisjoint(done.stderr.split())


def test_init_writes_a_spec_that_is_right_but_for_its_model():
    assert purestep(*INIT, "--lr", "1e-4", "--num-steps", "5000").exit_code == 0
    assert purestep("spec", "check", "train.json").output == ""
    report = json.loads(purestep("spec", "report", "train.json", "--json").stdout)
    assert report["num_steps"] == 5000
    assert [warning["code"] for warning in report["warnings"]] == ["PS303", "PS304", "PS301"]


def test_init_takes_several_stores_and_writes_paths_as_seen_from_the_spec():
    os.mkdir("specs")
    done = purestep(
        "train", "init", "--dataset", "a.zarr", "--dataset", "/b.zarr", "--output-dir", "runs/x", "--out", "specs/x.json", "--num-epochs", 3
    )
    assert (done.exit_code, done.stdout) == (0, "")
    spec = json.loads(Path("specs/x.json").read_text())
    assert (spec["dataset"]["paths"], spec["output"]["run_dir"]) == (["../a.zarr", "/b.zarr"], "../runs/x")
    assert (spec["strategy"]["num_epochs"], spec["strategy"]["schedule"]) == (3, 1e-3)


def test_nothing_is_written_over():
    Path("train.json").write_text("mine")
    for words in (INIT, ["schema", "dump", "--out", "train.json"], ["schema", "template", "--out", "train.json"]):
        assert purestep(*words).exit_code == 4
    assert Path("train.json").read_text() == "mine"


def test_the_template_has_neither_problems_nor_warnings():
    assert purestep("schema", "template", "--out", "spec.json").exit_code == 0
    assert purestep("spec", "report", "spec.json", "--strict").exit_code == 0


def test_the_schema_is_json():
    assert json.loads(purestep("schema", "dump").stdout)["properties"]["strategy"]


def test_check_prints_a_line_for_each_problem_of_each_file():
    good, bad = write("good.json"), write("bad.json", **{"dataset/batchsize": 3, "strategy/num_stpes": 3})
    done = purestep("spec", "check", good, bad)
    assert done.exit_code == 3
    assert [line.split(" ")[1] for line in done.stdout.splitlines()] == ["PS101", "PS101"]
    assert all(line.startswith("bad.json:") for line in done.stdout.splitlines())
    assert done.stderr.startswith("fix these first")


def test_check_says_that_contradictions_are_looked_for_last():
    both = {"strategy/num_epochs": 3}
    first, second = (purestep("spec", "check", write(**changes)) for changes in ({**both, "runtime/sed": 1}, both))
    assert ("PS108" in first.stdout, "fix these first" in first.stderr) == (False, True)
    assert ("PS108" in second.stdout, second.stderr) == (True, "")


def test_check_as_json_has_the_place_of_each_problem():
    good, bad = write("good.json"), write("bad.json", **{"dataset/batchsize": 3})
    done = purestep("spec", "check", good, bad, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    line = Path("bad.json").read_text().splitlines().index('    "batchsize": 3') + 1
    assert (done.exit_code, problem["file"], problem["code"], problem["line"], problem["column"]) == (3, "bad.json", "PS101", line, 5)
    assert json.loads(purestep("spec", "check", good, "--json").stdout) == {"schema": "purestep.spec-check/1", "problems": []}


def test_a_file_that_does_not_exist_is_a_problem_of_paths():
    assert purestep("spec", "check", "none.json").exit_code == 4
    assert purestep("spec", "run", "none.json").exit_code == 4


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"strategy/model_specs": {}}, "PS303"),
        ({"dataset/paths": ["none.zarr"], "dataset/validation_paths": ["shipped:g2"]}, "PS304"),
        ({"dataset/validation_split": "validation"}, "PS312"),
        ({"output/checkpoints": None}, "PS302"),
        ({"strategy/schedule/warmup_steps": 3}, "PS307"),
        ({"runtime/precision": "bf16", "strategy/update/1": {"kind": "identity"}}, "PS309"),
        ({"strategy/update/1": {"kind": "adam"}, "strategy/update/2": {"kind": "add_decayed_weights", "weight_decay": 0.1}}, "PS308"),
        ({"runtime/device": "cuda"}, "PS310"),
        ({"dataset/batch_size": 10_000}, "PS317"),
        ({"output/run_dir": "."}, "PS311"),
        ({"runtime/compile": {}}, "PS313"),
        ({"strategy/schedule/peak_value": 5.0}, "PS305"),
        ({"strategy/schedule": 1e-9}, "PS305"),
        ({"workflow": "finetune", "source": {"checkpoint_path": "."}, "strategy/schedule": 1e-3}, "PS305"),
    ],
)
def test_a_report_warns_and_a_strict_one_fails(changes, code, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = write(**changes)
    report = purestep("spec", "report", path)
    assert report.exit_code == 0
    assert [line.split(" ")[1] for line in report.stdout.splitlines() if line.startswith("warning")] == [code]
    assert purestep("spec", "report", path, "--strict").exit_code == 3


def test_a_report_shows_the_order_of_the_updates_and_the_learning_rate():
    text = purestep("spec", "report", write()).stdout
    assert "skip_nonfinite() → clip_by_global_norm(max_norm=2.0) → adamw(weight_decay=0.01)" in text
    assert "LinearWeight(start=1.0, end=2.0, num_steps=9) * ForceL2NormLoss()" in text
    assert "0.01 |" in text


def test_a_report_imports_no_target():
    Path("stranger.py").write_text("raise SystemExit('imported')")
    done = purestep("spec", "report", write(**{"strategy/model_specs/main": {"cls_path": "stranger.Net"}}), "--trust", "stranger")
    assert done.exit_code == 0
    assert "stranger.Net (not imported)" in done.stdout


def test_a_deep_report_counts_what_a_run_trains():
    path = write(**{"strategy/frozen": ["embedding.*"]})
    report = json.loads(purestep("spec", "report", path, "--deep", "--json").stdout)
    training = build(read_spec(path)).training
    state = training.init(3)
    trained = sum(state.params[name].numel() for name in training.trainable)
    assert report["sizes"]["parameters"] == {"all": sum(leaf.numel() for leaf in state.params.values()), "trained": trained}
    assert trained < report["sizes"]["parameters"]["all"]
    sizes = report["sizes"]["bytes"]
    assert (sizes["all"], sizes["optimizer"]) == (tree.num_bytes(state), tree.num_bytes(state.opt_state))
    text = purestep("spec", "report", path, "--deep").stdout
    assert "main = purestep.models.PaiNN (imported)" in text and f" {trained:,} trained; state " in text


def test_a_deep_report_imports_only_what_is_trusted():
    Path("stranger.py").write_text("raise SystemExit('imported')")
    path = write(**{"strategy/model_specs/main": {"cls_path": "stranger.Net"}})
    assert purestep("spec", "report", path, "--deep").exit_code == 5
    assert purestep("spec", "report", write(**{"strategy/model_specs": {}}), "--deep").exit_code == 3


def test_trust_is_asked_for_before_any_path_is_looked_at():
    path = write(**{"strategy/model_specs/main": {"cls_path": "stranger.Net"}, "dataset/paths": ["none.zarr"]})
    assert purestep("spec", "run", path).exit_code == 5
    assert purestep("spec", "run", path, "--trust", "*").exit_code == 5
    assert purestep("spec", "run", path, "--trust", "stranger").exit_code == 4
    assert not os.path.exists("run")


@pytest.mark.slow
def test_a_trusted_model_of_the_working_directory_is_found():
    Path("stranger.py").write_text(STRANGER)
    path = write(**{"strategy/model_specs/main/cls_path": "stranger.Net", "strategy/num_steps": 1})
    words = [sys.executable, "-m", "purestep", "spec", "run", path, "--trust", "stranger", "--progress", "none", "--no-report"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_a_run_without_a_model_makes_nothing():
    done = purestep("spec", "run", write(**{"strategy/model_specs": {}}))
    assert (done.exit_code, done.stdout) == (3, "")
    assert "PS303 /strategy/model_specs: there is no model" in done.stderr
    assert not os.path.exists("run")


def test_a_batch_that_is_larger_than_the_data_is_a_problem_of_the_spec():
    done = purestep("spec", "run", write(**{"dataset/batch_size": 10_000}), "--progress", "none")
    assert done.exit_code == 3
    assert "PS317 /dataset/batch_size: a batch of 10000 has more frames than there are, " in done.stderr
    kept = write(**{"dataset/batch_size": 10_000, "dataset/last": "keep"})
    assert "PS317" not in purestep("spec", "report", kept).stdout


def test_a_run_writes_down_what_it_was_and_what_became_of_it():
    done = purestep("spec", "run", write(), "--set", "strategy.num_steps=2", "--progress", "none", "--no-report")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step_count"] == 2
    records = documents_in("run")
    assert records["spec.json"]["strategy"]["num_steps"] == 2
    assert records["spec.json"]["strategy"]["update"][2]["b1"] == 0.9
    assert Path("run/spec.source.json").read_bytes() == Path("spec.json").read_bytes()
    assert records["run.json"]["overrides"] == ["strategy.num_steps=2"]
    assert records["run.json"]["packages"]["torch"] == importlib.metadata.version("torch")
    assert (records["status.json"]["status"], records["status.json"]["exit_code"]) == ("finished", 0)
    assert [line["batch"] for line in read_metrics("run/metrics.jsonl") if line["kind"] == "train"] == [1, 2]


def test_a_run_is_never_written_over_another():
    assert purestep("spec", "run", write(), "--progress", "none", "--no-report").exit_code == 0
    before = documents_in("run")
    again = purestep("spec", "run", "spec.json")
    assert again.exit_code == 4
    assert "purestep spec resume" in again.stderr and "--run-dir" in again.stderr
    assert documents_in("run") == before


def test_commands_that_are_advised_carry_the_trust_that_was_given():
    words = ["--trust", "other.package", "--progress", "none", "--no-report"]
    assert purestep("spec", "run", write(), *words).exit_code == 0
    advised = [line for line in purestep("spec", "run", "spec.json", *words).stderr.splitlines() if line.startswith("  purestep")]
    advised += purestep("spec", "resume", "run", *words).stderr.splitlines()[1:]
    advised += purestep("spec", "resume", "run", "--step", 2, *words).stderr.splitlines()[1:]
    assert len(advised) == 4
    assert all(line.endswith(" --trust other.package") for line in advised)


def test_the_spec_of_a_run_makes_the_same_run_again():
    purestep("spec", "run", write(), "--progress", "none", "--no-report")
    assert purestep("spec", "run", "run/spec.json", "--run-dir", "again", "--progress", "none", "--no-report").exit_code == 0
    assert_trees_equal(state_of("again"), state_of("run"))


def test_a_finished_run_that_is_resumed_stays_as_it_is():
    purestep("spec", "run", write(), "--progress", "none", "--no-report")
    before = state_of("run")
    assert purestep("spec", "resume", "run", "--progress", "none", "--no-report").exit_code == 0
    assert_trees_equal(state_of("run"), before)


def test_what_is_no_run_cannot_be_resumed():
    os.mkdir("empty")
    assert purestep("spec", "resume", "empty").exit_code == 4
    assert purestep("spec", "resume", "none").exit_code == 4


def test_a_model_that_does_not_take_its_arguments_is_refused_before_anything_is_made():
    done = purestep("spec", "run", write(**{"strategy/model_specs/main/hiden_size": 8}))
    assert done.exit_code == 3
    assert "did you mean 'hidden_size'" in done.stderr
    assert not os.path.exists("run")


def test_an_exception_of_the_model_exits_with_1_and_leaves_its_traceback(monkeypatch, here):
    Path("broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("PURESTEP_TRUST", "other:broken")  # the same as --trust
    done = purestep("spec", "run", write(**{"strategy/model_specs/main/cls_path": "broken.Net"}), "--progress", "none", "--no-report")
    sys.modules.pop("broken")
    assert done.exit_code == 1
    assert "ZeroDivisionError: of the model" in Path("run/crash-rank0.txt").read_text()
    assert documents_in("run")["status.json"] == {
        "schema": "purestep.status/1",
        "status": "failed",
        "exit_code": 1,
        "reason": "of the model",
    }


def test_a_run_on_other_data_than_it_began_with_is_not_resumed():
    purestep("spec", "run", write(), "--progress", "none", "--no-report")
    path = Path("run/spec.json")
    path.write_text(path.read_text().replace('"split": "validation"', '"split": "test"'))
    done = purestep("spec", "resume", "run", "--set", "strategy.num_steps=9", "--progress", "none", "--no-report")
    assert done.exit_code == 4
    assert "data.num_samples: saved" in done.stderr and "data.dataset: saved" in done.stderr
    assert documents_in("run")["status.json"]["status"] == "finished"


@pytest.mark.slow
def test_a_signal_saves_and_exits_with_75_and_resuming_equals_never_stopping():
    path = write(**{"strategy/num_steps": 60, "strategy/schedule/decay_steps": 60})
    words = [sys.executable, "-m", "purestep", "spec", "run", path, "--progress", "none", "--no-report"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not os.path.exists("run/metrics.jsonl") or len(Path("run/metrics.jsonl").read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait() == 75
    assert documents_in("run")["status.json"]["status"] == "interrupted"
    assert purestep("spec", "resume", "run", "--progress", "none", "--no-report").exit_code == 0
    assert purestep("spec", "run", path, "--run-dir", "whole", "--progress", "none", "--no-report").exit_code == 0
    assert_trees_equal(state_of("run"), state_of("whole"))
    assert read_metrics("run/metrics.jsonl") == read_metrics("whole/metrics.jsonl")
    assert int(tree.leaves(state_of("run").counters.step_count)[0]) == 60
