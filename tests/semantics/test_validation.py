"""Validation counts every sample once, may differentiate with respect to its inputs, and keeps nothing."""

import gc
import os
from pathlib import Path

import pytest
import torch

import purestep as ps
from purestep.data import Loader
from purestep.testing import assert_trees_close, assert_trees_equal
from purestep.validation import validate
from tests.examples_of_models import batches, molecules, potential_training, run, training


def zero_but_for_one_ten(count=5):
    """Samples whose mean squares are 10, 0, 0, ..., for a model that always says 0."""
    first = torch.tensor([4.0, 2.0, 4.0, 2.0], dtype=torch.float64)
    zeros = torch.zeros(4, dtype=torch.float64)
    return [{"x": zeros, "y": first if number == 0 else zeros} for number in range(count)]


def zeros_training():
    loss = ps.MSELoss(prediction_key="y", target_key="y", mask_key="mask")
    return training(loss=loss, forward=lambda model, batch: {"y": 0.0 * model(batch["x"]).detach()})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 8])
def test_five_samples_have_the_mean_two_for_every_batch_size_and_padding(batch_size):
    tr = zeros_training()
    data = Loader(zero_but_for_one_ten(), batch_size, shuffle=False, last="pad")
    # 4 elements a sample; 10 / 5
    assert validate(tr, tr.init(), ps.Validation(data))["loss/total"] == 2.0


@pytest.mark.parametrize(("count", "batch_size"), [(512, 16), (11, 5), (9, 5)])
def test_every_sample_is_counted_once(count, batch_size):
    tr, state = zeros_training(), zeros_training().init()
    data = Loader(zero_but_for_one_ten(count), batch_size, last="pad")
    counted = sum(tr.evaluate(state, batch)[1]["MSELoss"].denominator.item() for batch in data.epoch(0))
    assert counted == 4 * count


def seen_in_training(tr, state, batch):
    """Predictions of a training step at these parameters."""
    seen = []

    def look(kept, ctx):
        seen.append({name: value.detach() for name, value in ctx.predictions.items()})
        return kept, ctx

    hook = ps.Hook("look", frozenset({ps.Stage.AFTER_FORWARD}), lambda state: (), look)
    observed = tr.replace(hooks=(hook,))
    observed.step(observed.init(), batch)
    return seen[0]


@pytest.mark.parametrize("modes", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("name", "atol"),
    [
        ("schnet", 0.0),
        # where a derivative is differentiated again, torch takes another formula for that of SiLU: one unit in the last place
        ("painn", 1e-15),
    ],
)
def test_forces_of_a_validation_are_those_of_training(name, atol, modes):
    tr, batch = potential_training(name), molecules()
    state = tr.init()
    expected = seen_in_training(tr, state, batch)
    with modes():
        predictions, sums = tr.evaluate(state, batch)
    assert_trees_close(predictions["forces"], expected["forces"], rtol=0.0, atol=atol)
    assert_trees_equal(predictions["energy"], expected["energy"])
    assert not any(leaf.requires_grad for leaf in ps.tree.leaves((predictions, sums, state)))


def test_a_compiled_validation_has_the_forces_of_the_eager_one():
    tr, batch = potential_training("painn"), molecules()
    state = tr.init()
    with torch.no_grad():
        compiled, _ = ps.compile(tr.evaluate, backend="eager")(state, batch)
    assert_trees_equal(compiled["forces"], tr.evaluate(state, batch)[0]["forces"])


def resident_bytes():
    """Memory of this process: tensors that a graph keeps are no objects of Python."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_is_flat_over_a_hundred_validations():
    tr, held_out = potential_training("schnet"), ps.Validation([molecules((30, 30, 30, 30))])
    state = tr.init()
    for _ in range(10):
        validate(tr, state, held_out)
    before = resident_bytes()
    for _ in range(100):
        validate(tr, state, held_out)
    # a graph kept from each takes 1.5 MiB
    assert resident_bytes() - before < 4 * 2**20


def test_a_validation_reads_its_own_loss_and_not_that_of_training_before():
    tr, data = training(), batches(3)
    held_out = ps.Validation(batches(2, seed=8))
    result = ps.fit(tr, data, num_steps=3, validation=held_out)
    assert result.history[-1]["validation/loss/total"] == validate(tr, result.state, held_out)["loss/total"]
    assert result.history[-1]["validation/loss/total"] != result.history[-1]["loss/total"]


def test_training_goes_on_in_train_mode_after_a_validation():
    tr, data = training(), batches(4)
    state, _ = run(tr.step, tr.init(), data[:2])
    expected, _ = run(tr.step, state, data[2:])
    validate(tr, state, ps.Validation(data))
    after, _ = run(tr.step, state, data[2:])
    assert_trees_equal(after, expected)
    assert after.buffers["norm.num_batches_tracked"].item() == 4
