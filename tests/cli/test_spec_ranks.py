"""A run that several processes share: `torchrun -m purestep spec run`. In float64, since sums over ranks have an order of their own."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from purestep.checkpoint import load
from purestep.cli import main
from purestep.cli.spec.ranks import joined, shared
from purestep.core import tree
from purestep.distributed import Topology
from purestep.spec.building import build
from purestep.spec.reading import check_text, read_spec
from purestep.testing import assert_trees_equal
from tests.spec.examples import changed, text_of

DOUBLE = {"dataset/dtype": "float64", "output/checkpoints": {"every_n_steps": 2}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**changes):
    Path("spec.json").write_text(text_of(changed(**DOUBLE | changes)))


def run(*words):
    return CliRunner().invoke(main, ["spec", "run", "spec.json", "--progress", "none", "--no-report", *words])


def torchrun(count, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "-m", "purestep", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})


def state_of(run_dir):
    spec = read_spec(os.path.join(run_dir, "spec.json"))
    like = build(spec).training.init(spec.runtime.seed)
    return load(os.path.join(run_dir, "checkpoints"), like=like, allow_extra=("opt_state.*sum_over_ranks.*",))


def test_a_world_of_one_is_the_run_without_torchrun(monkeypatch):
    write()
    assert run().exit_code == 0
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert run("--run-dir", "one").exit_code == 0
    assert_trees_equal(state_of("one"), state_of("run"))
    assert sorted(os.listdir("one")) == sorted(os.listdir("run"))


def test_several_processes_are_refused_where_nobody_started_them_and_accepted_under_torchrun(monkeypatch):
    write(**{"strategy/num_steps": 1})
    refused = run("--distributed")
    assert refused.exit_code == 2
    assert "torchrun --nproc_per_node=2 -m purestep spec run spec.json --distributed" in refused.stderr
    assert not os.path.exists("run")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert run("--distributed").exit_code == 0


def test_one_process_is_refused_where_several_were_started(monkeypatch):
    write()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    refused = run("--no-distributed")
    assert (refused.exit_code, os.path.exists("run")) == (2, False)
    assert "one of 2 processes" in refused.stderr


def test_how_long_ranks_wait_at_the_start_and_in_collectives_is_taken_from_the_spec(monkeypatch):
    asked = {}
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("purestep.distributed.init", lambda **settings: asked.update(settings))
    patience = {"timeout_seconds": 5.0, "collective_timeout_seconds": 900.0}
    with joined(check_text(text_of(changed(**{"runtime/distributed": patience}))).spec):
        assert asked == {"device": "cpu", **patience}


def test_batches_that_cannot_be_cut_are_refused():
    spec = check_text(text_of(changed(**{"dataset/batch_size": 3}))).spec
    with pytest.raises(Exception, match="/dataset: shard: a batch of 3 samples cannot be cut among 2 ranks"):
        shared(spec, build(spec), Topology(0, 2))


def test_weights_from_elsewhere_are_not_loaded_in_parts():
    source = {"workflow": "finetune", "source": {"checkpoint_path": "a"}, "runtime/distributed": {"shard_state": "parameters"}}
    spec = check_text(text_of(changed(**source))).spec
    with pytest.raises(Exception, match="use gradients at most"):
        shared(spec, build(spec), Topology(0, 2))


@pytest.mark.distributed
def test_the_exit_code_and_the_status_say_which_rank_was_killed_be_it_the_first(here):
    victim = 0
    write(**{"strategy/num_steps": 100_000, "runtime/compile": None})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "purestep", "spec", "run", "spec.json", "--progress", "none", "--no-report"]
    ranks = [subprocess.Popen(words, env={**os.environ, **place, "RANK": str(rank)}, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        wait_for(here / "run" / "ranks" / f"rank-0000{victim}.json", '"running"')
        ranks[victim].kill()
        _, told = ranks[1 - victim].communicate(timeout=40)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    status = json.loads(Path("run/status.json").read_text())
    assert (ranks[1 - victim].returncode, status["status"], status["exit_code"]) == (8, "failed", 8), told
    assert status["no_word_from"] == [victim]
    assert f"no word from rank {victim}" in status["reason"]


def wait_for(path, text):
    deadline = time.monotonic() + 40
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text} in {path}"
        time.sleep(0.05)


@pytest.mark.slow
def test_two_ranks_give_the_run_of_one_and_its_directory_is_written_by_the_first():
    write(**{"runtime/distributed": {"shard_state": "optimizer"}})
    assert run().exit_code == 0
    done = torchrun(2, "spec", "run", "spec.json", "--progress", "none", "--no-report", "--run-dir", "two", "--profile", "1:2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step_count"] == 3  # one document, of rank 0
    one, two = state_of("run"), state_of("two")
    for path, leaf in tree.items(one.params):
        # float64, and sums in another order
        torch.testing.assert_close(dict(tree.items(two.params))[path], leaf, rtol=0, atol=1e-12)
    assert sorted(os.listdir("two/ranks")) == ["rank-00000.json", "rank-00001.json", "rank-00001.log"]
    assert sorted(os.listdir("two/trace")) == ["profile.txt", "rank-00001", "trace.json.gz"]
    assert sorted(os.listdir("two/trace/rank-00001")) == ["profile.txt", "trace.json.gz"]
    assert '"world_size": 2' in Path("two/run.json").read_text()
    resumed = CliRunner().invoke(main, ["spec", "resume", "two", "--set", "strategy.num_steps=4", "--progress", "none", "--no-report"])
    assert "restored step 3" in resumed.stderr, resumed.output
