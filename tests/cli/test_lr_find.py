"""`purestep lr find`: what the test measures is worked by hand on a quadratic; the command runs on a tiny spec."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import purestep as ps
from purestep.checkpoint import save
from purestep.cli import main
from purestep.cli.lr_range import RangeTest, run_range_test, suggest, with_rate
from purestep.data import Loader
from purestep.spec.building import build
from purestep.spec.reading import read_spec
from tests.spec.examples import changed, text_of


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, batch):
        return self.w * batch["x"]


@pytest.fixture
def quadratic():
    """Loss `w^2 / 2`: a step at rate r multiplies w by 1 - r, so that it blows up beyond r = 2."""
    training = ps.Training(Slope(), loss=lambda p, b: 0.5 * p.square().mean(), optimizer=ps.sgd(1.0))
    return training, Loader([{"x": torch.ones(1, dtype=torch.float64)}] * 3, 1, last="drop")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PURESTEP_TRUST", "")
    return tmp_path


def write(**changes):
    Path("spec.json").write_text(text_of(changed(**{"dataset/split": "test", **changes})))
    return "spec.json"


def lr_find(*words):
    return CliRunner().invoke(main, ["lr", "find", *(str(word) for word in words)])


def measured(quadratic, rates):
    training, batches = quadratic
    return run_range_test(training.step, training.end_epoch, batches, training.init(), rates)


def test_each_batch_is_trained_at_its_rate(quadratic):
    test = measured(quadratic, [0.5, 0.25, 0.1, 0.1])
    # w is 1, then 0.5, 0.375, 0.3375: products of a few roundings
    np.testing.assert_allclose(test.losses, [0.5, 0.125, 0.5 * 0.375**2, 0.5 * 0.3375**2], rtol=1e-14)
    assert test.stopped == "the last rate was reached"


def test_the_running_mean_begins_at_the_first_loss(quadratic):
    test = measured(quadratic, [0.5, 0.25])
    # (0.9 * 0.5 + 0.125) / (0.9 + 1)
    np.testing.assert_allclose(test.means, [0.5, (0.9 * 0.5 + 0.125) / 1.9], rtol=1e-14)


def test_a_loss_that_blows_up_ends_the_test(quadratic):
    test = measured(quadratic, [0.5, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert len(test.rates) == len(test.losses) == len(test.means) < 6
    assert "has grown to 4 times its least value" in test.stopped


def test_a_loss_that_is_not_finite_ends_the_test_and_is_left_out(quadratic):
    test = measured(quadratic, [0.5, math.inf, 0.1])
    assert (test.rates, test.stopped) == ((0.5, math.inf), "the loss is not finite after an update at inf")


def test_the_state_given_stays_as_it_is(quadratic):
    training, batches = quadratic
    state = training.init()
    before = ps.tree.clone(state)
    run_range_test(training.step, training.end_epoch, batches, state, [0.1, 0.2, 0.3, 0.4])
    ps.testing.assert_trees_equal(state, before)


def test_the_suggestion_is_where_the_loss_falls_fastest_and_where_it_is_least():
    rates = np.logspace(-5, 0, 101)
    # falls by a smooth step centred at 1e-3, rises by another beyond 1e-1
    losses = 1 / (1 + (rates / 1e-3) ** 2) + (rates / 0.3) ** 2
    found = suggest(RangeTest(tuple(rates), tuple(losses), tuple(losses), ""))
    # half of a grid cell, 0.025 decades, on either side, and the window that the slope is taken over
    assert abs(math.log10(found.steepest / 1e-3)) < 0.1
    assert found.least == rates[losses.argmin()]


@pytest.mark.parametrize("losses", [np.ones(50), np.linspace(1, 2, 50), np.linspace(1, 0.99, 50), np.array([])], ids=str)
def test_a_loss_that_does_not_fall_suggests_nothing(losses):
    rates = tuple(np.logspace(-5, 0, len(losses)))
    assert suggest(RangeTest(rates, tuple(losses), tuple(losses), "")) is None


def test_every_learning_rate_of_a_spec_is_replaced_and_noted(here):
    spec = read_spec(write(**{"strategy/update/2/learning_rate": 0.5}), ["strategy.schedule=null"])
    replaced, given = with_rate(spec, 0.25)
    assert (replaced.strategy.update[2].learning_rate, replaced.strategy.schedule, given) == (0.25, None, (0.5,))
    scheduled, given = with_rate(read_spec(write()), 0.25)
    assert (scheduled.strategy.schedule, len(given), math.isnan(given[0])) == (0.25, 1, True)


def test_the_command_measures_from_the_beginning_and_writes_nothing(here):
    text = Path(write()).read_text()
    done = lr_find("spec.json", "--from", "1e-5", "--to", "1e-2", "--steps", 10, "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["rates"][0], len(document["rates"])) == (1e-5, 10)
    assert document["rates"][-1] == pytest.approx(1e-2, rel=1e-12)  # a power of a ratio
    training, batches, _ = build(read_spec("spec.json"))
    _, metrics = training.step(training.init(3), batches.batch(0, 0))
    assert document["losses"][0] == float(metrics["loss/total"])
    assert (document["runtime"]["deterministic"], document["runtime"]["num_threads"], document["runtime"]["seed"]) == (True, 1, 3)
    assert (os.listdir(), Path("spec.json").read_text()) == (["spec.json"], text)


def test_the_measure_of_a_finetuning_begins_with_its_weights(here):
    training = build(read_spec(write(**{"runtime/seed": 9}))).training
    save("weights", training.init(9))
    done = lr_find(write(workflow="finetune", source={"checkpoint_path": "weights"}), "--steps", 10, "--json")
    _, metrics = training.step(training.init(9), build(read_spec("spec.json")).batches.batch(0, 0))
    assert json.loads(done.stdout)["losses"][0] == float(metrics["loss/total"])


def test_the_command_draws_once_and_says_what_it_found(here):
    write()
    done = lr_find("spec.json", "--steps", 10, "--png", "rates.png")
    assert (done.exit_code, done.stdout.splitlines()[0][:6]) == (0, "rates ")
    assert "suggests" in done.stdout
    assert Path("rates.png").read_bytes().startswith(b"\x89PNG")
    assert lr_find("spec.json", "--steps", 10, "--png", "rates.png").exit_code == 4


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--from", "1", "--to", "0.1"], 2, "must be less than"),
        (["--set", "strategy.update.2.learning_rate=0.5"], 3, "PS108"),
        (["--set", 'strategy.update.1={"kind":"sgd","learning_rate":0.5}'], 3, "several learning rates (a schedule, 0.5)"),
        (["--set", "strategy.model_specs.main.cls_path=my.models.Net"], 5, "--trust my.models"),
        (["--set", "dataset.paths.0=nowhere.zarr"], 4, "PS304"),
    ],
    ids=["order", "spec", "several rates", "trust", "path"],
)
def test_what_cannot_be_measured_is_refused(here, words, code, reason):
    done = lr_find(write(), *words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert reason in done.stderr
