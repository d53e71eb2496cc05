"""Samples with which a loader fills up a batch are in no loss and no metric, without a word from the user."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.metrics import MAE, Accuracy
from purestep.validation import validate
from tests.examples_of_models import seeded


def samples(count):
    gen = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(3, generator=gen, dtype=torch.float64),
            "y": torch.randn(2, generator=gen, dtype=torch.float64),
            "label": torch.tensor(i % 2),
            "there": torch.tensor([True, i % 3 > 0]),
        }
        for i in range(count)
    ]


def forward(model, batch):
    out = model(batch["x"])
    return {"y": out, "label": out}


LOSSES = {
    "regression": lambda: ps.MSELoss(prediction_key="y", target_key="y"),
    "masked elements": lambda: ps.HuberLoss(prediction_key="y", target_key="y", mask_key="there"),
    "classes": lambda: ps.CrossEntropyLoss(prediction_key="label", target_key="label"),
    "bits": lambda: ps.BinaryCrossEntropyLoss(prediction_key="y", target_key="there"),
    "the mask by name": lambda: ps.MSELoss(prediction_key="y", target_key="y", mask_key="mask"),
}


def trained_on(loss):
    return ps.Training(seeded(nn.Linear, 3, 2), loss=loss, forward=forward, optimizer=ps.sgd(0.1))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_loss_over_an_epoch_does_not_depend_on_the_batch_size(name):
    tr, data = trained_on(LOSSES[name]()), samples(11)
    metrics = (MAE(prediction_key="y", target_key="y"), Accuracy(prediction_key="label", target_key="label"))
    found = [validate(tr, tr.init(), ps.Validation(ps.data.Loader(data, size), metrics=metrics)) for size in (11, 4, 32)]
    for other in found[1:]:
        # sums in another order
        assert {k: v for k, v in other.items() if k != "num_batches"} == pytest.approx(
            {k: v for k, v in found[0].items() if k != "num_batches"}, rel=1e-13
        )


def test_the_step_takes_the_gradient_of_the_samples_that_count():
    tr, data = trained_on(LOSSES["regression"]()), samples(5)
    filled = next(iter(ps.data.Loader(data, 8, shuffle=False)))
    whole = next(iter(ps.data.Loader(data, 5, shuffle=False, last="keep")))
    assert int(filled["mask"].sum()) == 5
    assert "mask" not in whole
    expected, found = (tr.step(tr.init(), batch)[0].params for batch in (whole, filled))
    for name, leaf in expected.items():
        # sums over three zeros more
        torch.testing.assert_close(found[name], leaf, rtol=1e-13, atol=1e-15)


def test_a_mask_over_elements_that_bears_the_name_is_not_taken_for_one_over_samples():
    batch = {"x": torch.ones(2, 3, dtype=torch.float64), "y": torch.ones(2, 2, dtype=torch.float64), "mask": torch.ones(2, 2).bool()}
    tr = trained_on(LOSSES["regression"]())
    without = {key: value for key, value in batch.items() if key != "mask"}
    assert tr.step(tr.init(), batch)[1]["loss/total"] == tr.step(tr.init(), without)[1]["loss/total"]


def whole_mean(predictions, batch):
    return (predictions["y"] - batch["y"]).square().mean()


@pytest.mark.parametrize(("count", "last"), [(8, "pad"), (7, "drop"), (7, "keep")])
def test_nobody_is_warned_where_nothing_is_filled_up(recwarn, count, last):
    ps.fit(trained_on(whole_mean), ps.data.Loader(samples(count), 4, last=last), num_epochs=1)
    assert not recwarn.list


def test_a_loss_function_that_cannot_know_of_the_filling_is_told_of_when_the_run_starts():
    with pytest.warns(UserWarning, match="filled up with samples that do not count, which the loss function loss cannot know"):
        ps.fit(trained_on(whole_mean), ps.data.Loader(samples(7), 4), num_epochs=1)
    with pytest.warns(UserWarning, match="filled up"):
        validate(trained_on(whole_mean), trained_on(whole_mean).init(), ps.Validation(ps.data.Loader(samples(7), 4)))
