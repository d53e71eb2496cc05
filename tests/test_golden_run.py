"""Twenty steps whose losses are stored bit for bit: a refactor leaves them as they are.

A change that is meant to move numbers stores them anew, in a commit of its own that says why:

    python -m tests.test_golden_run

Another processor or torch may round otherwise; where torch's own functions do, only closeness is asked for.
"""

import json
from pathlib import Path

import pytest
import torch

import purestep as ps
from tests.examples_of_models import batches, molecules, potential_training, training

STORED = Path(__file__).parent / "goldens" / "golden_run.json"
NUM_STEPS = 20


def module_run():
    """BatchNorm, dropout, tied weights, a gate, a window, clipping, AdamW with a schedule, and an average."""
    rate = ps.schedules.warmup_cosine_decay(0.0, 1e-2, 3, 10)
    optimizer = ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.clip_by_global_norm(0.5), ps.adamw(rate, weight_decay=0.1))
    tr = training(optimizer=optimizer, hooks=(ps.hooks.ema(0.9),))
    state, losses = tr.init(seed=42), []
    for batch in batches(NUM_STEPS, seed=1):
        state, metrics = tr.step(state, batch)
        losses.append(metrics["loss/total"].item())
    averaged, _ = tr.evaluate(state, batch, *ps.hooks.average(state))
    return [*losses, averaged["y"].sum().item()]


def potential_run():
    """Energies and forces of molecules."""
    tr = potential_training("painn")
    state, losses = tr.init(seed=42), []
    for number in range(NUM_STEPS):
        state, metrics = tr.step(state, molecules(seed=number))
        losses.append(metrics["loss/total"].item())
    return losses


def rounding_of_torch():
    """What plain torch makes of some numbers here."""
    x = torch.linspace(0.1, 2.0, 96, dtype=torch.float64)
    functions = (torch.tanh, torch.exp, torch.log, torch.cos, torch.sin, torch.sqrt, torch.sigmoid, torch.expm1, torch.log1p)
    products = [x[: 8 * size].view(8, size) @ x[: 4 * size].view(size, 4) for size in (4, 6, 12)]
    return [float(value) for value in (*(fn(x).sum() for fn in functions), *(product.square().sum() for product in products), x.var())]


RUNS = {"module": module_run, "potential": potential_run}


def stored(name):
    return [float.fromhex(text) for text in json.loads(STORED.read_text(encoding="utf-8"))[name]]


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_gives_the_stored_losses_bit_for_bit(name):
    if rounding_of_torch() != stored("torch"):
        pytest.skip("torch rounds otherwise here than where the run was stored")
    assert RUNS[name]() == stored(name)


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_is_close_to_the_stored_losses_on_any_machine(name):
    # rounding of 1e-16, grown over twenty steps
    assert RUNS[name]() == pytest.approx(stored(name), rel=1e-8)


def write() -> None:
    """Store the losses of this version of the code, and how torch rounds here."""
    torch.set_num_threads(1)
    numbers = {"torch": rounding_of_torch()} | {name: run() for name, run in RUNS.items()}
    texts = {name: [number.hex() for number in column] for name, column in numbers.items()}
    STORED.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
