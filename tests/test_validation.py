"""Validation: exact whatever the batches, with averaged weights, and without a trace in training."""

import pytest
import torch

import purestep as ps
from purestep.core import tree
from purestep.errors import DataError
from purestep.metrics import MAE
from purestep.validation import validate
from tests.examples_of_models import batches, forward, mean_squared_error, molecules, potential_training, training


def joined(data):
    return {key: torch.cat([batch[key] for batch in data]) for key in data[0]}


@pytest.mark.parametrize("sizes", [(24,), (8, 8, 8), (23, 1), (5, 7, 12)])
def test_the_result_does_not_depend_on_how_the_data_is_cut(sizes):
    tr = training()
    whole = joined(batches(3))
    parts = [dict(zip(whole, pair, strict=True)) for pair in zip(*(tensor.split(sizes) for tensor in whole.values()), strict=True)]
    state = tr.init()
    one = validate(tr, state, ps.Validation([whole]))
    # sums of the same numbers in another order
    assert validate(tr, state, ps.Validation(parts))["loss/total"] == pytest.approx(one["loss/total"], rel=1e-12)


def test_five_samples_of_which_one_is_wrong_by_ten_give_a_mean_of_two():
    rows = [[4.0, 2.0, 4.0, 2.0], *[[0.0] * 4] * 4]  # mean squares 10, 0, 0, 0, 0
    data = [{"x": torch.zeros(1, 4).double(), "y": torch.tensor([row], dtype=torch.float64)} for row in rows]
    tr = training(forward=lambda model, batch: {"y": 0.0 * model(batch["x"]).detach()})
    assert validate(tr, tr.init(), ps.Validation(data))["loss/total"] == 2.0


def test_nothing_of_the_state_or_the_globals_changes(untouched_globals):
    tr, data = training(hooks=[ps.hooks.ema(0.9)]), batches(2)
    state, _ = tr.step(tr.init(), data[0])
    before = tree.clone(state)
    validate(tr, state, ps.Validation(data))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(state), tree.leaves(before), strict=True))


def test_averaged_weights_are_used_where_there_are_any():
    tr, data = training(hooks=[ps.hooks.ema(0.5)]), batches(3)
    state, _ = tr.step(tr.init(), data[0])
    averaged = validate(tr, state, ps.Validation(data))
    live = validate(tr, state, ps.Validation(data, use_ema=False))
    params, buffers = ps.hooks.average(state)
    _, sums = tr.evaluate(state, joined(data), params, buffers)
    (term,) = sums.values()
    assert (averaged["ema"], live["ema"]) == (1.0, 0.0)
    # one division of the same sums
    assert averaged["loss/total"] == pytest.approx(float(term.numerator / term.denominator), rel=1e-12)
    assert averaged["loss/total"] != live["loss/total"]


def test_forces_are_there_and_keep_no_graph():
    tr = potential_training("painn")
    state = tr.init()
    predictions, _ = tr.evaluate(state, molecules())
    assert not predictions["forces"].requires_grad
    assert predictions["forces"].abs().max() > 0


def test_evaluation_under_no_grad_gives_the_same_forces_bitwise():
    tr = potential_training("painn")
    state = tr.init()
    outside, _ = tr.evaluate(state, molecules())
    with torch.no_grad():
        inside, _ = tr.evaluate(state, molecules())
    assert torch.equal(outside["forces"], inside["forces"])


def test_own_forward_loss_and_metrics_are_used():
    tr, data = training(), batches(2)
    validation = ps.Validation(
        data,
        forward=lambda model, batch: {"z": forward(model, batch)["y"] * 0.0},
        loss=ps.MAELoss(prediction_key="z", target_key="y"),
        metrics=[MAE(prediction_key="z", target_key="y")],
    )
    summary = validate(tr, tr.init(), validation)
    expected = float(joined(data)["y"].abs().mean())
    assert summary["loss/total"] == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(
        next(value for name, value in summary.items() if "mae" in name.lower() and "loss" not in name), rel=1e-12
    )


def test_the_callback_sees_every_batch():
    seen = []
    tr, data = training(), batches(3)
    validate(
        tr,
        tr.init(),
        ps.Validation(data, batch_callback=lambda **info: seen.append((info["batch_count"], info["step_count"], info["epoch"]))),
    )
    assert seen == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="not both"):
        ps.Validation(batches(1), every_n_steps=1, every_n_epochs=1)
    with pytest.raises(ValueError, match="every_n_steps must be at least 1, got 0"):
        ps.Validation(batches(1), every_n_steps=0)
    with pytest.raises(DataError, match="iterator"):
        ps.Validation(iter(batches(1)))
    with pytest.raises(DataError, match="no batches"):
        validate(training(), training().init(), ps.Validation([]))


def test_the_loss_of_training_is_that_of_validation_at_the_same_weights():
    tr, data = training(loss=2.0 * mean_squared_error(), forward=forward), batches(1)
    state = tr.init()
    _, sums = tr.evaluate(state, data[0])
    assert validate(tr, state, ps.Validation(data))["loss/total"] == float(sums["MSELoss"].numerator / sums["MSELoss"].denominator)


def test_a_term_without_any_label_is_an_error_and_no_perfect_score():
    tr = training(loss=mean_squared_error(ignore_nonfinite=True))
    unlabelled = [{**batch, "y": torch.full_like(batch["y"], float("nan"))} for batch in batches(2)]
    with pytest.raises(DataError, match="none of the data has a label for the loss term MSELoss"):
        validate(tr, tr.init(), ps.Validation(unlabelled))


class OwnPotential(torch.nn.Module):
    """A potential that marks its input, and differentiates, by itself."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, batch):
        positions = batch["x"].requires_grad_(True)
        energy = (self.weight * positions).sin().sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return {"y": -gradient}


def test_a_potential_that_marks_its_input_works_everywhere_and_leaves_the_batch_alone():
    tr, batch = training(OwnPotential().double(), forward=lambda model, batch: model(batch)), batches(1)[0]
    state, _ = tr.step(tr.init(), batch)
    here, _ = tr.evaluate(state, batch)
    with torch.inference_mode():
        there, _ = tr.evaluate(state, batch)
    assert torch.equal(here["y"], there["y"])
    assert not batch["x"].requires_grad


def test_one_batch_in_place_of_several_is_refused():
    with pytest.raises(TypeError, match=r"data must be several batches, got one dict; give a list: \[batch\]"):
        ps.Validation({"x": torch.ones(2, 1)})
