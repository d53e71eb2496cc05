"""`purestep ckpt`: checkpoints of a real, tiny training, looked at as a user would."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import purestep as ps
from purestep.checkpoint import save
from purestep.checkpoint.store import directory_name
from tests.cli.calling import purestep

TRAINING = ps.Training(
    nn.Linear(3, 2),
    loss=lambda p, b: (p - 1.0).square().mean(),
    forward=lambda m, b: m(b),
    optimizer=ps.adamw(0.1),
    hooks=(ps.hooks.ema(0.5),),
)


@pytest.fixture(scope="module")
def states():
    found, state = [], TRAINING.init(seed=0)
    for _ in range(3):
        state, _ = TRAINING.step(state, torch.ones(4, 3))
        found.append(state)
    return found


@pytest.fixture
def run_dir(tmp_path, monkeypatch, states):
    """A run with three checkpoints, of which the second has the lowest validated loss."""
    monkeypatch.chdir(tmp_path)
    for label, state, loss in zip((1, 2, 3), states, (3.0, 1.0, 2.0), strict=True):
        save(f"run/checkpoints/{directory_name(label)}", state, metrics={"validation/loss/total": loss}, extra={"data": "abc"})
    return "run"


def spoil(label):
    path = Path(f"run/checkpoints/step-{label:010d}/model.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_list_has_a_line_for_each_checkpoint_of_a_run(run_dir):
    for place in (run_dir, f"{run_dir}/checkpoints"):
        lines = purestep("ckpt", "list", place).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["step-0000000001", "step-0000000002", "step-0000000003"]
        assert "validation/loss/total 3" in lines[0]


def test_list_of_one_checkpoint_is_that_one(run_dir):
    assert purestep("ckpt", "list", f"{run_dir}/checkpoints/step-0000000002").stdout.startswith("step-0000000002  step 2")


def test_list_as_json_names_what_is_damaged(run_dir):
    Path("run/checkpoints/step-0000000002/model.safetensors").write_bytes(b"short")
    done = purestep("ckpt", "list", run_dir, "--json")
    document = json.loads(done.stdout)
    assert [row["label"] for row in document["checkpoints"]] == [1, 3]
    assert document["checkpoints"][0]["metrics"] == {"validation/loss/total": 3.0}
    assert document["damaged"][0]["path"].endswith("step-0000000002")
    assert "truncated" in done.stderr


def test_show_opens_the_state_to_the_depth_asked_for(run_dir):
    shallow, deep = (purestep("ckpt", "show", run_dir, "--depth", depth).stdout for depth in (1, 9))
    assert "  counters  batch 3 · " in shallow and "├─ params" in shallow and "weight" not in shallow
    assert "f32[2, 3]" in deep and "24 B" in deep


@pytest.mark.parametrize(
    ("step", "label"), [("latest", 3), ("1", 1), ("best:validation/loss/total", 2), ("best:max:validation/loss/total", 1)]
)
def test_show_chooses_by_step(run_dir, step, label):
    document = json.loads(purestep("ckpt", "show", run_dir, "--step", step, "--json").stdout)
    assert (document["label"], document["counters"]["step_count"]) == (label, label)
    assert document["extra"] == {"data": "abc"}


def test_the_leaves_of_show_are_those_of_the_state(run_dir, states):
    document = json.loads(purestep("ckpt", "show", run_dir, "--json").stdout)
    assert {leaf["path"] for leaf in document["leaves"]} == set(ps.tree.paths(states[-1]))
    assert sum(leaf["bytes"] for leaf in document["leaves"] if "bytes" in leaf) == ps.tree.num_bytes(states[-1])


@pytest.mark.parametrize("step", ["newest", "best:", "-1"])
def test_a_step_that_says_nothing_is_a_wrong_command_line(run_dir, step):
    assert purestep("ckpt", "show", run_dir, "--step", step).exit_code == 2


def test_one_checkpoint_leaves_nothing_to_choose(run_dir):
    assert purestep("ckpt", "show", f"{run_dir}/checkpoints/step-0000000002", "--step", "1").exit_code == 2


def test_verify_reads_all_and_finds_one_flipped_bit(run_dir):
    assert (done := purestep("ckpt", "verify", run_dir)).exit_code == 0
    assert done.stdout.count("intact") == 3
    spoil(2)
    done = purestep("ckpt", "verify", run_dir, "--json")
    assert done.exit_code == 4
    assert [found["intact"] for found in json.loads(done.stdout)["checkpoints"]] == [True, False, True]
    assert "step-0000000002" in done.stderr


def test_verify_finds_a_checkpoint_under_the_name_of_another(run_dir):
    os.rename("run/checkpoints/step-0000000002", "run/checkpoints/step-0000000007")
    done = purestep("ckpt", "verify", run_dir)
    assert (done.exit_code, "was it renamed?" in done.stderr) == (4, True)


def test_export_writes_what_the_state_holds(run_dir, states):
    done = purestep("ckpt", "export", run_dir, "--to", "out")
    assert (done.exit_code, done.stdout) == (0, f"{Path('out').absolute()}\n")
    assert torch.equal(load_file("out/model.safetensors")["weight"], states[-1].params["weight"])


def test_export_of_an_average_in_another_precision(run_dir, states):
    words = ("--weights", "ema", "--dtype", "bfloat16", "--step", "2")
    document = json.loads(purestep("ckpt", "export", run_dir, "--to", "out", *words, "--json").stdout)
    assert (document["label"], document["weights"]) == (2, "ema")
    averaged = states[1].hook_state["ema"].params["weight"]
    assert torch.equal(load_file("out/model.safetensors")["weight"], averaged.to(torch.bfloat16))


@pytest.mark.parametrize(("averaged", "chosen"), [(1.0, "ema"), (0.0, "raw")])
def test_export_takes_the_weights_that_were_validated(run_dir, states, averaged, chosen):
    save("run/checkpoints/" + directory_name(4), states[-1], metrics={"validation/ema": averaged})
    done = purestep("ckpt", "export", run_dir, "--to", "out")
    assert f"wrote the {chosen} weights of step 3, those that were validated" in done.stderr
    expected = {"raw": states[-1].params["weight"], "ema": states[-1].hook_state["ema"].params["weight"]}[chosen]
    assert torch.equal(load_file("out/model.safetensors")["weight"], expected)
    assert "wrote the raw weights of step 3\n" in purestep("ckpt", "export", run_dir, "--to", "raw", "--weights", "raw").stderr


def test_a_checkpoint_that_is_older_than_the_validation_is_exported_by_the_log(run_dir, states):
    lines = [{"attempt": 1, "kind": "validation", "batch": 3, "epoch": 0, "validation/ema": 1.0}]
    Path("run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "wrote the ema weights of step 3" in purestep("ckpt", "export", run_dir, "--to", "out").stderr


def test_show_has_a_line_for_each_metric(run_dir, states):
    metrics = {f"validation/error_{number}": float(number) for number in range(45)}
    save("run/checkpoints/" + directory_name(4), states[-1], metrics=metrics)
    lines = purestep("ckpt", "show", run_dir).stdout.splitlines()
    assert [line.split() for line in lines if "validation/" in line] == [[name, f"{metrics[name]:g}"] for name in sorted(metrics)]


def test_export_writes_nothing_over_anything(run_dir):
    assert purestep("ckpt", "export", run_dir, "--to", "out").exit_code == 0
    done = purestep("ckpt", "export", run_dir, "--to", "out")
    assert (done.exit_code, done.stdout) == (4, "")


def test_export_of_a_damaged_checkpoint_is_refused(run_dir):
    spoil(3)
    done = purestep("ckpt", "export", run_dir, "--to", "out")
    assert (done.exit_code, os.path.exists("out")) == (4, False)


def test_weights_that_no_hook_averages_are_named(run_dir):
    done = purestep("ckpt", "export", run_dir, "--to", "out", "--weights", "swa")
    assert (done.exit_code, "it has ema" in done.stderr) == (4, True)


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_a_place_without_checkpoints_is_a_problem_of_paths(run_dir, command):
    assert purestep("ckpt", command, "nowhere").exit_code == 4
