"""A run whose memory is not enough: what it says, and what it leaves."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from purestep.cli.out_of_memory import ADVICE, is_out_of_memory
from purestep.spec.reading import check_text
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

GREEDY = """import torch
from purestep.models import PaiNN
class Net(PaiNN):
    def forward(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
GREEDY_NET = {"cls_path": "greedy.Net", "hidden_size": 4, "num_layers": 1, "cutoff": 3.0}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_run_that_has_no_more_memory_says_what_needs_less_and_lists_what_was_in_it(here):
    Path("greedy.py").write_text(GREEDY)
    Path("spec.json").write_text(text_of(changed(**{"strategy/model_specs": {"main": GREEDY_NET}})))
    done = purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", "--trust", "greedy")
    listed = here / "run" / "crash" / "memory-rank0.txt"
    assert done.exit_code == 1
    assert all(line in done.stderr for line in ("Tried to allocate 2.00 GiB", *ADVICE, f"listed in {listed}")), done.stderr
    text = listed.read_text()
    assert text.startswith("OutOfMemoryError in batch 0: CUDA out of memory.")
    assert {"state.params", "state.opt_state", "state.total"} <= {line.split()[0] for line in text.splitlines() if line}


def test_the_failed_start_for_want_of_memory_gives_its_place_to_the_next(here):
    Path("greedy.py").write_text(GREEDY)
    Path("spec.json").write_text(text_of(changed(**{"strategy/model_specs": {"main": GREEDY_NET}})))
    purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", "--trust", "greedy")
    Path("spec.json").write_text(text_of(changed(**{"strategy/num_steps": 1})))
    assert purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", "--set", "runtime.microbatches=2").exit_code == 0
    assert not os.path.exists("run/crash")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (torch.OutOfMemoryError("no"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_the_host_runs_out_of_memory_by_other_names(error, found):
    assert is_out_of_memory(error) is found


def test_what_the_advice_would_set_can_be_set():
    settings = re.findall(r"(?:dataset|runtime)\.\w+(?:=\w+)?", " ".join(ADVICE))
    assert settings == ["runtime.microbatches=2", "dataset.batch_size", "runtime.precision=bf16"]
    assert check_text(text_of(changed()), [one if "=" in one else f"{one}=2" for one in settings]).problems == ()
