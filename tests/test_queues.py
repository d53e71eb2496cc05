"""The examples for queues, run by a shell with stand-ins for what a queue brings: stopped, started again, and done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from purestep.reporting import read_metrics
from tests.spec.examples import changed, text_of

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = f'echo $$ > process; exec {sys.executable} -m purestep "$@"\n'
STEP = 'SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 exec "$@"\n'
TORCHRUN = f"""while [ "$1" != -m ]; do shift; done; shift 2
(echo $BASHPID > process; RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 exec {sys.executable} -m purestep "$@") || exit 1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a spec of a long run, whose commands come first on the path."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("bin")
    for name, text in {"purestep": PROGRAM, "srun": STEP, "torchrun": TORCHRUN, "scontrol": 'echo "$@" >> requeued\n'}.items():
        program = Path("bin", name)
        program.write_text(f"#!/bin/bash\n{text}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    Path("train.json").write_text(text_of(changed(**{"strategy/num_steps": 1_000_000})))
    return tmp_path


def stopped(words, number, environment):
    """Exit code and standard error of a script whose process is sent a signal once a further batch has been logged."""
    log = Path("run/metrics.jsonl")
    before = len(log.read_text().splitlines()) if log.exists() else 0
    script = subprocess.Popen(words, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not log.exists() or len(log.read_text().splitlines()) < before + 3:
            assert script.poll() is None and time.monotonic() < deadline, script.stderr.read()
            time.sleep(0.05)
        os.kill(int(Path("process").read_text()), number)
        told = script.communicate(timeout=60)[1]
    finally:
        script.kill()
    return script.returncode, told


def starts():
    """After which batch each attempt began, and the last batch of the log."""
    lines = read_metrics("run/metrics.jsonl", attempts=True)
    return [line["batch"] for line in lines if line["kind"] == "start"], max(line["batch"] for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_job_that_slurm_stops_goes_back_into_the_queue_and_goes_on(here, number):
    job = ["bash", str(EXAMPLES / "slurm.sbatch"), "train.json", "--no-report"]
    code, told = stopped(job, number, {"SLURM_JOB_ID": "7"})
    assert (code, Path("requeued").read_text()) == (75, "requeue 7\n"), told
    _, end = starts()
    code, told = stopped(job, number, {"SLURM_JOB_ID": "7"})
    assert (code, Path("requeued").read_text()) == (75, "requeue 7\n" * 2), told
    assert starts()[0] == [0, end]


@pytest.mark.slow
def test_a_job_that_fails_or_is_done_does_not_go_back_into_the_queue(here):
    job = ["bash", str(EXAMPLES / "slurm.sbatch"), "train.json", "--no-report", "--set"]
    environment = {**os.environ, "SLURM_JOB_ID": "7"}
    assert subprocess.run([*job, "strategy.num_stpes=1"], env=environment, capture_output=True).returncode == 3
    assert subprocess.run([*job, "strategy.num_steps=1"], env=environment, capture_output=True).returncode == 0
    assert not os.path.exists("requeued")


@pytest.mark.slow
def test_a_job_of_skypilot_says_75_when_it_is_worth_another_start_and_goes_on(here):
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    environment = {**task["envs"], "RUN_DIR": str(here / "run"), "SKYPILOT_NUM_GPUS_PER_NODE": "1"}
    code, told = stopped(["bash", "-c", task["run"]], signal.SIGTERM, environment)
    assert (code, json.loads(Path("run/status.json").read_text())["exit_code"]) == (75, 75), told
    _, end = starts()
    assert stopped(["bash", "-c", task["run"]], signal.SIGTERM, environment)[0] == 75
    assert starts()[0] == [0, end]
    Path("train.json").write_text("{")  # a start that fails at once says nothing of the one before
    failed = subprocess.run(["bash", "-c", task["run"]], env={**os.environ, **environment}, capture_output=True)
    assert (failed.returncode, json.loads(Path("run/status.json").read_text())["exit_code"]) == (1, 75)
