"""`spec run --dry-run` of runs that several ranks share, and of more than one batch: what it says, how it ends, that nothing is left."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

ROOT = Path(__file__).parents[2]
PARTS = "tests.spec.awkward_parts"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**values):
    Path("spec.json").write_text(text_of(changed(**values)))


def rungs_of(done):
    return {rung["name"]: rung for rung in json.loads(done.stdout)["rungs"]}


def two_ranks(*words):
    """Exit code, stdout and stderr of two processes as torchrun starts them, whose own exit code says less."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "purestep", "spec", "run", "spec.json", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, **pipes) for rank in range(2)]
    try:
        told = [rank.communicate(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], told


def test_a_run_of_one_process_needs_no_other_ranks():
    write()
    rung = rungs_of(purestep("spec", "run", "spec.json", "--dry-run"))["ranks"]
    assert (rung["outcome"], rung["words"]) == ("not needed", "the run is of one process (--distributed rehearses one of several)")


def test_several_batches_are_trained_on_in_a_row():
    write(**{"strategy/schedule": 0.01})
    done = purestep("spec", "run", "--dry-run=3", "spec.json")
    rung = rungs_of(done)["steps"]
    assert (done.exit_code, rung["outcome"]) == (0, "passed")
    assert purestep("spec", "run", "spec.json", "--max-steps", 3, "--progress", "none", "--no-report").exit_code == 0
    losses = [json.loads(line)["loss/total"] for line in Path("run/metrics.jsonl").read_text().splitlines() if '"loss/total"' in line]
    assert rung["words"] == f"3 batches in a row, 3 updates: loss {losses[0]:.6g} at the first, {losses[2]:.6g} at the last"


def test_the_number_of_batches_stands_behind_an_equals_sign_only_and_is_positive():
    write()
    done = purestep("spec", "run", "--dry-run", "spec.json")
    assert (done.exit_code, rungs_of(done)["steps"]["outcome"]) == (0, "not needed")
    assert purestep("spec", "run", "spec.json", "--dry-run=0").exit_code == 2


@pytest.mark.distributed
@pytest.mark.parametrize("asked", [["--distributed"], ["--set", 'runtime.distributed={"shard_state": "gradients"}']])
def test_one_process_rehearses_what_several_are_to_do(here, asked):
    write()
    done = purestep("spec", "run", "spec.json", "--dry-run", *asked)
    rung = rungs_of(done)["ranks"]
    assert (done.exit_code, rung["outcome"]) == (0, "passed"), done.stderr
    assert rung["words"].startswith("3 and 5 frames on two ranks, in float64: weights and losses are those of one process to ")
    assert os.listdir() == ["spec.json"]


@pytest.mark.distributed
def test_a_term_that_is_wrong_on_unequal_shares_fails_the_dry_run():
    write(**{"strategy/loss": [{"cls_path": f"{PARTS}.MeanOfRank"}]})
    done = purestep("spec", "run", "spec.json", "--dry-run", "--distributed", "--trust", PARTS)
    document = json.loads(done.stdout)
    assert (done.exit_code, document["status"], document["rungs"][-1]["outcome"]) == (7, "failed", "failed")
    assert "MeanOfRank/unweighted differs" in done.stderr


@pytest.mark.distributed
def test_all_ranks_wait_for_the_first_and_end_well_with_it():
    write(**{"runtime/distributed": {"timeout_seconds": 120.0}})
    codes, told = two_ranks("--dry-run")
    assert codes == [0, 0], told
    assert "ok     ranks" in told[0][1]
    assert (json.loads(told[0][0])["status"], told[1][0]) == ("passed", "")
    assert os.listdir() == ["spec.json"]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"strategy/schedule": 0.0, "strategy/update/2/weight_decay": 0}, [7, 7]),
        ({"dataset/batch_size": 3}, [3, 3]),
        ({"strategy/model_specs": {"main": {"cls_path": f"{PARTS}.Raising"}}}, [1, 1]),
        ({"strategy/model_specs": {"main": {"cls_path": f"{PARTS}.DyingFirst"}}}, [9, 8]),
    ],
    ids=["a rung fails", "the run would be refused", "an exception", "a death"],
)
def test_all_ranks_end_where_the_first_fails(here, values, codes):
    write(**values, **{"runtime/distributed": {"timeout_seconds": 120.0}})
    found, told = two_ranks("--dry-run", "--trust", PARTS)
    assert found == codes, told
    assert os.listdir() == ["spec.json"]
