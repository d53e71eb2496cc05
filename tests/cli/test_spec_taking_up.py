"""Runs that are rehearsed, cut short, taken up again, or taken up with changes. Runs are tiny: a few frames, three updates."""

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

import pytest

from purestep.checkpoint import load
from purestep.cli.spec.record import describe_code, write_changes
from purestep.spec.building import build
from purestep.spec.reading import check_text, read_spec
from purestep.testing import assert_trees_equal
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

CHECKPOINTS = {"output/checkpoints": {"every_n_steps": 1}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, **changes):
    Path("spec.json").write_text(text_of(changed(**(CHECKPOINTS | changes))))
    return purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", *words)


def resume(*words):
    return purestep("spec", "resume", *words, "--progress", "none", "--no-report")


def record(run_dir="run"):
    return json.loads(Path(run_dir, "run.json").read_text())


def state_of(run_dir):
    spec = read_spec(os.path.join(run_dir, "spec.json"))
    return load(os.path.join(run_dir, "checkpoints"), like=build(spec).training.init(spec.runtime.seed))


def test_a_dry_run_tries_everything_and_writes_nothing():
    done = run("--dry-run")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["schema"], document["status"]) == ("purestep.dry-run/1", "passed")
    assert os.listdir() == ["spec.json"]


def test_a_dry_run_that_fails_exits_with_7():
    done = run("--dry-run", **{"strategy/schedule": 0.0, "strategy/update/2/weight_decay": 0})
    assert done.exit_code == 7
    assert json.loads(done.stdout)["status"] == "failed"


def test_a_run_that_is_cut_short_is_recorded_as_such_and_can_be_finished():
    assert run("--max-steps", 2).exit_code == 0
    assert record()["overrides"] == ["strategy.num_steps=2"]
    assert read_spec("run/spec.json").strategy.num_steps == 2
    assert resume("run", "--set", "strategy.num_steps=3").exit_code == 0
    assert record()["attempts"][0]["changes"] == ["~ /strategy/num_steps: 2 -> 3"]
    assert run("--run-dir", "whole").exit_code == 0
    assert_trees_equal(state_of("run"), state_of("whole"))


def test_a_run_of_epochs_is_cut_short_in_steps_and_a_short_one_is_left_as_it_is():
    assert run("--max-steps", 1, **{"strategy/num_steps": None, "strategy/num_epochs": 2}).exit_code == 0
    assert record()["overrides"] == ["strategy.num_epochs=null", "strategy.num_steps=1"]
    assert run("--max-steps", 9, "--run-dir", "short").exit_code == 0
    assert record("short")["overrides"] == []


def test_resume_auto_begins_goes_on_and_leaves_a_finished_run_alone():
    assert run("--resume", "auto", "--max-steps", 2).exit_code == 0
    done = run("--resume", "auto")
    assert done.exit_code == 0
    assert "restored step 2" in done.stderr
    before = state_of("run")
    assert run("--resume", "auto").exit_code == 0
    assert_trees_equal(state_of("run"), before)


@pytest.mark.parametrize("again", [lambda: resume("run"), lambda: run("--resume", "auto"), lambda: resume("run", "--run-dir", "branch")])
def test_a_run_that_has_finished_is_told_so_and_nothing_of_it_is_written_anew(here, again):
    assert run().exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in here.rglob("run/**/*")}
    done = again()
    assert (done.exit_code, json.loads(done.stdout)["step_count"]) == (0, 3)
    assert "nothing to do: the run has its 3 updates; raise strategy.num_steps" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in here.rglob("run/**/*")} == before
    assert not os.path.exists("branch")


def test_a_run_that_came_to_its_end_but_failed_there_is_finished():
    run()
    Path("run/status.json").write_text('{"status": "failed"}')
    assert resume("run").exit_code == 0
    assert json.loads(Path("run/status.json").read_text())["status"] == "finished"


def test_resume_auto_begins_anew_where_nothing_was_saved():
    os.mkdir("run")
    Path("run/spec.json").write_text("{}")
    done = run("--resume", "auto")
    assert done.exit_code == 0
    assert "begins anew" in done.stderr


def test_resume_auto_refuses_another_run():
    run()
    assert run("--resume", "auto", **{"strategy/update/2/b1": 0.5}).exit_code == 3


def test_a_run_is_not_taken_up_with_changes_that_nobody_allowed():
    run("--max-steps", 2)
    before = Path("run/spec.json").read_text(), Path("run/run.json").read_text()
    done = resume("run", "--set", "strategy.update.2.b1=0.5", "--set", "strategy.num_steps=3")
    assert done.exit_code == 3
    assert "--allow-change strategy.update.2.b1" in done.stderr
    assert (Path("run/spec.json").read_text(), Path("run/run.json").read_text()) == before
    allowed = resume("run", "--set", "strategy.update.2.b1=0.5", "--set", "strategy.num_steps=3", "--allow-change", "strategy.update")
    assert allowed.exit_code == 0, allowed.output
    assert read_spec("run/spec.json").strategy.update[2].b1 == 0.5


def test_other_data_can_be_allowed_by_name():
    run("--max-steps", 2)
    words = ["run", "--set", "dataset.split=test", "--set", "strategy.num_steps=3", "--allow-change", "dataset.split"]
    done = resume(*words)
    assert done.exit_code == 0, done.output


def test_a_run_is_resumed_by_the_directory_of_its_checkpoints_and_the_spec_it_came_from():
    run("--max-steps", 2)
    assert resume("run/checkpoints", "--spec", "spec.json", "--checkpoint-index", -1).exit_code == 0
    assert int(state_of("run").counters.step_count) == 3


def test_an_older_checkpoint_is_gone_on_from_in_another_directory():
    run()
    done = resume("run", "--step", 2)
    assert done.exit_code == 4
    assert "--run-dir" in done.stderr
    assert resume("run", "--step", 2, "--run-dir", "branch").exit_code == 0
    assert_trees_equal(state_of("branch"), state_of("run"))
    assert record("branch")["attempts"][0]["step"] == 2
    assert resume("run", "--step", 7).exit_code == 4


def test_a_checkpoint_says_what_model_it_is_of():
    run("--max-steps", 1)
    from purestep.checkpoint import load_extra

    assert load_extra("run/checkpoints")["model_specs"] == changed()["strategy"]["model_specs"]


def test_the_record_has_code_device_and_data(here):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(here)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    assert describe_code(str(here))["dirty"] is False
    run("--max-steps", 1)
    written = record()
    assert (len(written["git"]["commit"]), written["git"]["dirty"]) == (40, True)
    assert (written["device"], written["parameters"]["all"]) == ("cpu", written["parameters"]["trained"])
    assert written["data"]["train"]["fingerprint"] != written["data"]["validation"]["fingerprint"]
    assert written["runtime"]["num_threads"] == 1


def test_uncommitted_changes_are_in_the_record_of_each_attempt_unless_the_spec_says_no(here):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(here)]
    Path("code.py").write_bytes(b"caf\xe9 = 1\n")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "code.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    run("--max-steps", 1)
    assert not Path("run/git.patch").exists()
    Path("code.py").write_bytes(b"caf\xe9 = 2\n")
    run("--run-dir", "silent", "--max-steps", 1, "--set", "output.record_diff=false")
    assert not Path("silent/git.patch").exists()
    run("--run-dir", "dirty", "--max-steps", 1)
    assert b"\n+caf\xe9 = 2\n" in Path("dirty/git.patch").read_bytes()
    resume("dirty", "--set", "strategy.num_steps=2")
    assert Path("dirty/git-1.patch").read_bytes() == Path("dirty/git.patch").read_bytes()


def test_every_package_and_the_variables_that_matter_are_in_the_record_without_keys(here, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    run("--max-steps", 1)
    installed = Path("run/packages.txt").read_text().splitlines()
    assert {f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "pytest")} <= set(installed)
    assert len(installed) == len(set(installed))
    assert {"NCCL_DEBUG": "WARN", "WANDB_API_KEY": "(set)"}.items() <= record()["environment"].items()
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    resume("run", "--set", "strategy.num_steps=2")
    assert record()["attempts"][0]["environment"]["NCCL_DEBUG"] == "INFO"
    assert not Path("run/packages-1.txt").exists()  # nothing was installed meanwhile
    Path("run/packages.txt").write_text("torch==0.1\n")
    resume("run", "--set", "strategy.num_steps=3")
    assert Path("run/packages-2.txt").read_text().splitlines() == installed


def test_large_changes_are_cut_and_say_so(here, monkeypatch):
    monkeypatch.setattr("purestep.cli.spec.record._git_bytes", lambda *words: b"x" * 1_000_001)
    write_changes(str(here), str(here), check_text(text_of(changed())).spec)
    written = Path("git.patch").read_bytes()
    assert len(written) < 1_000_100
    assert written.endswith(b"cut here: the changes are larger than 1000000 bytes\n")


def test_outside_a_repository_the_record_has_no_commit(here):
    assert describe_code(str(here)) is None
