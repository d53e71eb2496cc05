"""Who am I, and of how many: what torchrun and Slurm tell, and what a whole run under torchrun does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import purestep as ps
from purestep.distributed.topology import first_host, read_environment

SCRIPT = Path(__file__).with_name("elastic_script.py")


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (5, 8, 1)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, (3, 4, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, 0)),  # inside a job, but in no step of srun
    ],
    ids=["alone", "torchrun", "srun", "script of a Slurm job"],
)
def test_the_environment_says_which_rank_this_is(environment, place):
    assert tuple(read_environment(environment)[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) == place


def test_half_of_an_environment_is_refused():
    with pytest.raises(ps.errors.DistributedError, match="WORLD_SIZE is not set, though its companion is; start the ranks with torchrun"):
        read_environment({"RANK": "1"})


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ps.errors.DistributedError, match="must be whole numbers"):
        read_environment({"RANK": "one", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(("nodes", "host"), [("n1", "n1"), ("gpu[07-09,12],cpu1", "gpu07"), ("a,b", "a"), ("x[3,5]", "x3")])
def test_the_first_machine_of_a_slurm_step_is_the_meeting_point(nodes, host):
    assert first_host(nodes) == host


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ps.errors.DistributedError, match="rank 2 of a world of 2; ranks run from 0 to 1"):
        ps.distributed.init(rank=2, world_size=2)


def test_a_world_of_one_needs_nothing_and_changes_nothing():
    topology = ps.distributed.Topology()
    training = ps.Training(torch.nn.Linear(2, 1), loss=ps.MSELoss(prediction_key="y", target_key="y"), optimizer=ps.sgd(0.1))
    assert ps.distributed.data_parallel(training, topology) is training
    assert topology.ranks.world_size == 1


def test_others_that_do_not_come_are_an_error_in_time(tmp_path):
    with pytest.raises(ps.errors.DistributedError, match="rank 0 could not meet rank 1 of 2 within 1 s: not started"):
        ps.distributed.init(rank=0, world_size=2, method=f"file://{tmp_path}/store", device="cpu", timeout_seconds=1)


def under_torchrun(root, kill_after):
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.2"]
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(root), str(kill_after)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return re.search(r"started at (\d+), ended with (\w+)", done.stdout).groups()


@pytest.mark.distributed
def test_torchrun_restarts_a_killed_run_which_goes_on_bitwise(tmp_path):
    began, whole = under_torchrun(tmp_path / "whole", 0)
    began_again, resumed = under_torchrun(tmp_path / "killed", 5)
    assert (began, began_again) == ("0", "4")
    assert resumed == whole
