"""The examples run, and show what they say they show."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS_A_FILE = {"fcc_stress"}
NEEDS_A_PACKAGE = {"hugging_face": "transformers"}

SHOWN = {
    "ase_calculator": {"share_of_forces": lambda x: x < 0.2, "energy_per_atom": lambda x: x < 0.05},  # eV
    "alternating": {
        "mean": lambda x: 2.7 < x < 3.3,
        "deviation": lambda x: 0.25 < x < 0.75,
        "graphs": lambda x: x == 1,
        "waits_bitwise": bool,
    },
    "custom_hook": {
        "class_error/0": lambda x: x < 0.05,
        "class_error/1": lambda x: 0.1 < x < 0.45,
        "observing_changes_nothing": bool,
        "captured_is_eager": bool,
    },
    "custom_loss": {
        "q10": lambda x: 0.05 < x < 0.15,
        "q50": lambda x: 0.45 < x < 0.55,
        "q90": lambda x: 0.85 < x < 0.95,
        "cutting_changes": lambda x: x <= 1e-12,
    },
    "custom_transform": {"loss": lambda x: x < 1e-12, "remembers": bool},
    "distillation": {"agreement": lambda x: x > 0.95, "accuracy": lambda x: x > 0.9, "teacher_unchanged": bool},
    "ensemble": {
        "worst_loss": lambda x: x < 0.1,
        "spread_where_seen": lambda x: x < 0.1,
        "spread_elsewhere": lambda x: x > 0.1,
        "alone_or_together": lambda x: x <= 1e-10,
    },
    "gradient_surgery": {
        "weighted_sum/second": lambda x: x > 0.2,
        "project_conflicts/second": lambda x: x < 0.5,
        "balance_norms/second": lambda x: x < 0.1,
        "own/second": lambda x: x < 0.4,
    },
    "half_precision": {
        "loss_after": lambda x: x < 0.1,
        "skipped": lambda x: x >= 1,
        "skipped_left_no_trace": bool,
        "updates": lambda x: x < 150,
        "batches": lambda x: x == 150,
    },
    "hugging_face": {
        "loss": lambda x: x < 0.7,  # the first token tells nothing of the second: at least log(3) / 15
        "graphs": lambda x: x == 1,
        "tied_is_one_leaf": bool,
        "difference": lambda x: x <= 1e-5,  # float32
    },
    "masked_language_model": {
        "perplexity": lambda x: x < 6,
        "sizes": lambda x: x == 3,
        "cutting_changes": lambda x: x <= 1e-5,  # float32
    },
    "missing_labels": {
        "force_loss_before": lambda x: x > 0.1,
        "force_loss_after": lambda x: x < 0.05,
        "stress_loss_after": lambda x: x < 2e-4,
        "force_loss_without_labels": lambda x: x == 0,
    },
    "phases": {
        "graphs": lambda x: x == 1,
        "phases_are_schedules": bool,
        "averaged_updates": lambda x: x == 300,
        "force_loss_averaged": lambda x: x < 1.0,
    },
}


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SHOWN.keys() | NEEDS_A_FILE


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_shows_what_it_says(name, capsys, monkeypatch):
    if name in NEEDS_A_PACKAGE:
        pytest.importorskip(NEEDS_A_PACKAGE[name])
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, example)  # Dynamo imports the modules of the functions that it captures
    spec.loader.exec_module(example)
    with torch.random.fork_rng(devices=[]):  # an example draws its first weights from the global generator
        found = example.main()
    assert [key for key, holds in SHOWN[name].items() if not holds(found[key])] == [], found
    assert capsys.readouterr().out
