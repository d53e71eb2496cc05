"""The whole demo with a tiny recipe: real processes, a real kill, real signals."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch

from purestep.cli import documents
from purestep.cli.demo import layout
from purestep.cli.demo.command import run, write_run
from purestep.cli.demo.outcome import errors, load_model, predict
from purestep.cli.demo.recipe import SHORT
from purestep.data import shipped
from purestep.reporting import read_metrics

# An epoch has 12 batches.
TINY = dataclasses.replace(
    SHORT,
    num_steps=26,
    kill_at=14,
    checkpoint_every=5,
    validate_every_n_epochs=1,
    report_every=2,
    batch_size=128,
    hidden_size=8,
    num_layers=2,
    warmup_steps=4,
)

RUN = "import sys; from purestep.cli.demo.command import run; sys.exit(run(sys.argv[1], progress='plain'))"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("demo"))
    write_run(path, TINY)
    done = subprocess.run([sys.executable, "-c", RUN, path], capture_output=True, text=True)
    return path, done


@pytest.mark.slow
def test_the_resumed_run_is_bitwise_the_one_that_was_killed(finished):
    path, done = finished
    assert done.returncode == 0, done.stderr
    proof = documents.read(os.path.join(path, layout.PROOF))
    assert (proof["resumed_after_batch"], proof["compared_after_batch"], proof["bitwise"]) == (10, 14, True)
    assert proof["log_lines"] == 3  # batches 12 and 14, the validation after 12


@pytest.mark.slow
def test_the_log_of_a_killed_and_resumed_demo_has_every_moment_once(finished):
    path, _ = finished
    lines = read_metrics(os.path.join(path, layout.METRICS))
    assert [line["batch"] for line in lines if line["kind"] == "train"] == list(range(2, 27, 2))
    assert [line["batch"] for line in lines if line["kind"] == "validation"] == [12, 24, 26]


@pytest.mark.slow
def test_stdout_has_the_table_and_stderr_the_rest(finished):
    _, done = finished
    assert "predicting nothing" in done.stdout
    assert "219" in done.stdout
    assert "1.626" in done.stdout
    assert "frames/s" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_finished_demo_can_be_asked_again_for_its_document(finished, capsys):
    path, _ = finished
    assert run(path, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "purestep.demo/1"
    assert document["resume_bitwise"] is True
    assert document["weights"] == os.path.join(path, layout.WEIGHTS)
    assert {"energy_mae_mev_per_atom", "forces_mae_ev_per_angstrom", "seconds"} <= document.keys()
    assert all(os.path.exists(picture) for picture in document["pictures"])


@pytest.mark.slow
def test_the_file_of_weights_alone_gives_the_errors_that_were_reported(finished):
    path, _ = finished
    weights = os.path.join(path, layout.WEIGHTS)
    assert "members.0.reference_table" in safetensors.torch.load_file(weights)
    reported = documents.read(os.path.join(path, layout.RESULT))
    found = errors(predict(load_model(weights), shipped("g2"), TINY.cutoff))
    # float32 sums in another thread count
    assert np.allclose([found[name] for name in found], [reported[name] for name in found], rtol=1e-4)


def stop(path, number):
    """Begin a demo, and send it a signal once it has a checkpoint."""
    write_run(path, dataclasses.replace(TINY, num_steps=40, kill_at=37))
    process = subprocess.Popen([sys.executable, "-c", RUN, path], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: layout.has_checkpoint(path))
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    return process.returncode, said


@pytest.mark.slow
def test_a_demo_that_is_interrupted_says_what_it_saved(tmp_path):
    code, said = stop(str(tmp_path), signal.SIGINT)
    assert code == 75, said
    assert "stop requested (SIGINT); saved" in said
    assert "Traceback" not in said
    assert documents.read(os.path.join(tmp_path, layout.STATUS)) == {
        "schema": "purestep.status/1",
        "status": "interrupted",
        "exit_code": 75,
    }


@pytest.mark.slow
def test_a_demo_that_was_terminated_can_be_continued(tmp_path):
    code, said = stop(str(tmp_path), signal.SIGTERM)
    assert code == 75, said
    again = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert documents.read(os.path.join(tmp_path, layout.PROOF))["bitwise"]


def wait_for(condition, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
