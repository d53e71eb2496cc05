"""Settings of the process: applied, written down, put back."""

import json
import random

import numpy as np
import pytest
import torch

from purestep.loop import RuntimeSettings, use_runtime
from purestep.loop.runtime import runtime_record


def test_settings_hold_inside_and_are_as_before_outside(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = runtime_record()
    with use_runtime(RuntimeSettings(deterministic=True, tf32=True, num_threads=1, seed=3)) as record:
        assert record == runtime_record(seed=3)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    assert runtime_record() == before
    expected = {"deterministic": True, "tf32_matmul": True, "tf32_cudnn": True, "cudnn_benchmark": False, "cublas_workspace": ":4096:8"}
    assert {**record, **expected} == record


def test_the_record_is_json():
    with use_runtime(RuntimeSettings(deterministic="warn")) as record:
        assert json.loads(json.dumps(record))["deterministic"] == "warn"


def test_seeds_reach_all_three_generators_and_leave_no_trace():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    draws = []
    for _ in range(2):
        with use_runtime(RuntimeSettings(seed=7)):
            draws.append((random.random(), np.random.random(), float(torch.rand(()))))
    assert draws[0] == draws[1]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_nothing_asked_changes_nothing():
    before = runtime_record()
    with use_runtime(RuntimeSettings()) as record:
        assert record == before


def test_settings_are_put_back_after_an_error():
    with pytest.raises(ZeroDivisionError), use_runtime(RuntimeSettings(deterministic=True)):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (RuntimeSettings(deterministic=True, cudnn_benchmark=True), "deterministic=True contradicts cudnn_benchmark=True"),
        (RuntimeSettings(num_threads=0), "num_threads must be at least 1, got 0"),
        (RuntimeSettings(seed=-1), r"seed must lie in \[0, 2\*\*32\), got -1"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings, message):
    with pytest.raises(ValueError, match=message), use_runtime(settings):
        raise AssertionError("unreachable")
