"""`purestep ckpt verify --replay`: the training after a checkpoint is that of the log, or is found not to be."""

import json
from pathlib import Path

import pytest

from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of eight updates in epochs of few batches, with a plateau driven by validation, and checkpoints at each second one."""
    where = tmp_path_factory.mktemp("run")
    plateau = {"kind": "reduce_on_plateau", "patience": 1, "driven_by": "validation"}
    spec = changed(
        **{
            "dataset/split": "test",
            "dataset/batch_size": 64,
            "strategy/num_steps": 8,
            "strategy/update": [{"kind": "adamw", "weight_decay": 0.01}, plateau],
            "output/checkpoints": {"every_n_steps": 2, "keep_last": 9},
            "output/run_dir": str(where / "run"),
        }
    )
    (where / "spec.json").write_text(text_of(spec))
    done = purestep("spec", "run", where / "spec.json", "--progress", "none", "--no-report")
    assert done.exit_code == 0, done.output
    return where / "run"


def verify(run_dir, *words):
    return purestep("ckpt", "verify", run_dir, "--replay", 4, *words)


def test_the_batches_after_a_checkpoint_come_out_again_with_their_validations_and_nothing_is_written(run_dir):
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    done = verify(run_dir, "--step", 4, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["differing"] == []
    assert document["compared"] > 4  # four batches and a validation
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before


def test_a_line_that_is_one_bit_off_is_found(run_dir):
    log = Path(run_dir, "metrics.jsonl")
    whole = log.read_text()
    lines = [json.loads(line) for line in whole.splitlines()]
    spoilt = next(line for line in lines if line["kind"] == "train" and line["batch"] == 6)
    spoilt["loss/total"] += 2.0**-50 * abs(spoilt["loss/total"])
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = verify(run_dir, "--step", 4)
    log.write_text(whole)
    assert done.exit_code == 7
    assert "batch 6 (train) is not made again: loss/total was" in done.stdout


def test_where_the_log_has_nothing_to_compare_with_that_is_said(run_dir):
    done = verify(run_dir)
    assert (done.exit_code, "has no line of the 4 batches" in done.stderr) == (4, True)


def test_options_of_a_replay_are_refused_without_one(run_dir):
    assert purestep("ckpt", "verify", run_dir, "--step", 4).exit_code == 2
