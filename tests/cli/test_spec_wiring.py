"""Fields of a spec that are handed to the loop, the checkpoints and the process. Runs are tiny: a few frames, a few updates."""

import json
import os
from pathlib import Path

import pytest
import torch

from purestep.checkpoint.store import directory_name
from purestep.cli.spec.ends import ends_of
from purestep.reporting import read_metrics
from purestep.spec.building import build
from purestep.spec.reading import check_text
from tests.cli.calling import purestep
from tests.spec.examples import GONE, changed, text_of

STEP_BY_STEP = {"output/checkpoints": {"every_n_steps": 1, "keep_last": 1}}
NO_STEPS = {"strategy/num_steps": GONE}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, **changes):
    Path("spec.json").write_text(text_of(changed(**changes)))
    return purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", *words)


def document(name):
    return json.loads(Path("run", name).read_text())


def labels():
    return sorted(int(name.removeprefix("step-")) for name in os.listdir("run/checkpoints") if name.startswith("step-"))


def test_checkpoints_are_kept_and_cut_as_the_spec_says():
    settings = {"every_n_steps": 1, "keep_last": 1, "keep_every": 2, "keep_every_hours": 10_000.0, "max_file_bytes": 4_000}
    assert run(**{"output/checkpoints": settings, "strategy/num_steps": 5}).exit_code == 0
    assert labels() == [1, 2, 4, 5]  # the first of its hours, the multiples of two, the newest
    assert len(list(Path("run/checkpoints", directory_name(5)).glob("model*.safetensors"))) > 1


def test_a_run_can_be_as_long_as_its_batches():
    done = run(**NO_STEPS, **{"strategy/num_batches": 2})
    assert (done.exit_code, document("status.json")["reason"]) == (0, "num_batches")
    assert document("status.json")["batch_count"] == 2


def test_a_run_can_be_as_long_as_its_time():
    done = run(**NO_STEPS, **{"runtime/time_budget": 1e-6})
    assert (done.exit_code, document("status.json")["reason"]) == (0, "time_budget")
    assert document("status.json")["batch_count"] == 1


def test_a_run_ends_early_when_validation_brings_nothing_better():
    early = {"patience": 2, "min_delta": 1e3}
    done = run(**{"validation": {"every_n_steps": 1}, "strategy/early_stopping": early, "strategy/num_steps": 9})
    assert (done.exit_code, document("status.json")["reason"]) == (0, "early_stopping")
    assert document("status.json")["step_count"] == 3


def test_early_stopping_counts_the_validations_before_a_resume_and_no_final_ones():
    spec = check_text(text_of(changed(**{"strategy/early_stopping": {"patience": 9}}))).spec
    run(**{"validation": {"every_n_steps": 2}, "strategy/early_stopping": {"patience": 9}})
    values = [record["validation/loss/total"] for record in read_metrics("run/metrics.jsonl") if record["kind"] == "validation"]
    (early,) = ends_of(spec.strategy, "run/metrics.jsonl")
    assert (early.best, early.waited) == (values[0], 0)
    assert len(values) == 2
    assert ends_of(spec.strategy, "none.jsonl")[0].best is None


def test_a_run_ends_when_a_metric_is_good_enough():
    done = run(**{"validation": {"every_n_steps": 1}, "strategy/target_metric": {"metric": "loss/total", "target": 1e9}})
    assert (done.exit_code, document("status.json")["reason"]) == (0, "target_metric")
    assert document("status.json")["step_count"] == 1


def test_a_metric_that_validation_does_not_have_is_refused_before_the_run():
    done = run(**{"strategy/early_stopping": {"metric": "validation/energy/mae_ev_per_atm", "patience": 1}})
    assert done.exit_code == 3
    assert (
        "/strategy/early_stopping/metric: validation has no 'energy/mae_ev_per_atm'; did you mean 'energy/mae_ev_per_atom'?" in done.stderr
    )
    assert not os.path.exists("run/metrics.jsonl")


def test_the_settings_of_the_process_are_those_of_the_spec_recorded_and_put_back():
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    assert run(**{"runtime/deterministic": "warn", "runtime/tf32": True}).exit_code == 0
    settings = document("run.json")["runtime"]
    assert (settings["deterministic"], settings["tf32_matmul"], settings["num_threads"], settings["seed"]) == ("warn", True, 1, 3)
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()) == before


def test_batches_are_padded_to_so_many_sizes():
    batches = build(check_text(text_of(changed(**{"dataset/padded_sizes": 2}))).spec).batches
    assert len({tuple(batches.batch(0, number).positions.shape) for number in range(len(batches))}) <= 2
    assert not batches.batch(0, 0).graph_mask.all()
