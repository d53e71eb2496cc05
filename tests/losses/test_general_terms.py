"""Regression and classes on any keys: values by hand and by torch, masks, and errors."""

import pytest
import torch
import torch.nn.functional as F

from purestep.errors import LossError
from purestep.losses import BinaryCrossEntropyLoss, CrossEntropyLoss, HuberLoss, MAELoss, MSELoss
from tests.losses.loss_examples import NAN, mean, mean_and_grad


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([[0, 4, 2], [3, 1, 1]])
MASK = torch.tensor([[True, False, True], [True, True, False]])


@pytest.mark.parametrize(
    ("term", "expected"),
    [(MSELoss(), F.mse_loss), (MAELoss(), F.l1_loss), (HuberLoss(delta=0.3), lambda p, t: F.huber_loss(p, t, delta=0.3))],
)
def test_regression_losses_are_those_of_torch(term, expected):
    prediction, target = random(4, 3), random(4, 3, seed=1)
    torch.testing.assert_close(mean(term(prediction, target, {})), expected(prediction, target), rtol=1e-14, atol=0)


def test_a_mask_of_rows_leaves_out_their_elements():
    sums = MSELoss(mask_key="mask")(torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.zeros(2, 2), {"mask": torch.tensor([True, False])})
    assert (sums.numerator, sums.denominator) == (5, 2)


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(2, 1, dtype=torch.bool), torch.ones(4, dtype=torch.bool), None])
def test_a_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(LossError, match="MSELoss: mask 'mask'"):
        MSELoss(mask_key="mask")(torch.zeros(2, 3), torch.zeros(2, 3), {"mask": mask})


def test_a_missing_mask_is_refused_with_what_is_there():
    with pytest.raises(LossError, match=r"no mask 'mask'; there are \['weights'\]"):
        MSELoss(mask_key="mask")(torch.zeros(2), torch.zeros(2), {"weights": torch.ones(2)})


def test_numbers_without_a_sample_axis_are_refused():
    with pytest.raises(LossError, match="need a first axis, that of the samples"):
        MSELoss()(torch.tensor(1.0), torch.tensor(0.0), {})


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_that_of_torch(smoothing):
    logits = random(2, 3, 5)
    labels = LABELS.clone()
    labels[0, 0] = -100
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(mean(CrossEntropyLoss(label_smoothing=smoothing)(logits, labels, {})), expected, rtol=1e-14, atol=0)


def test_cross_entropy_takes_the_classes_of_images_from_the_axis_given():
    logits = random(2, 5, 3)
    torch.testing.assert_close(
        mean(CrossEntropyLoss(class_axis=1)(logits, LABELS, {})), F.cross_entropy(logits, LABELS), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_with_probabilities_is_that_of_torch(smoothing):
    logits, probabilities = random(4, 5), torch.softmax(random(4, 5, seed=1), -1)
    expected = F.cross_entropy(logits, probabilities, label_smoothing=smoothing)
    torch.testing.assert_close(mean(CrossEntropyLoss(label_smoothing=smoothing)(logits, probabilities, {})), expected, rtol=1e-14, atol=0)


def test_a_masked_row_counts_in_neither_sum_and_may_hold_anything():
    logits = random(2, 3, 5)
    spoilt = torch.where(MASK[..., None], logits, NAN)
    term, labels = CrossEntropyLoss(mask_key="mask"), torch.where(MASK, LABELS, 10**6)
    sums = term(spoilt, labels, {"mask": MASK})
    assert sums.denominator == 4
    torch.testing.assert_close(mean(sums), F.cross_entropy(logits[MASK], LABELS[MASK]), rtol=1e-14, atol=0)
    grad = mean_and_grad(term, (spoilt, labels, {"mask": MASK}))[1]
    assert grad.isfinite().all() and grad[~MASK].abs().max() == 0


def test_each_sequence_has_the_mean_over_its_own_tokens():
    logits = random(2, 3, 5)
    sums = CrossEntropyLoss(mask_key="mask")(logits, LABELS, {"mask": MASK})
    expected = torch.stack([F.cross_entropy(logits[i][MASK[i]], LABELS[i][MASK[i]]) for i in range(2)])
    torch.testing.assert_close(sums.per_sample, expected, rtol=1e-14, atol=0)


def test_an_ignored_class_of_zero_or_more_stays_in_the_softmax():
    logits = random(6, 5)
    labels = torch.tensor([0, 1, 2, 3, 4, 2])
    torch.testing.assert_close(
        mean(CrossEntropyLoss(ignore_index=2)(logits, labels, {})), F.cross_entropy(logits, labels, ignore_index=2), rtol=1e-14, atol=0
    )


def test_nothing_is_ignored_where_none_is_given():
    assert CrossEntropyLoss(ignore_index=None)(random(3, 5), torch.tensor([0, 1, 2]), {}).denominator == 3


def test_an_impossible_class_of_another_label_gives_no_nan():
    logits = random(3, 5)
    logits[:, 4] = float("-inf")
    value, grad = mean_and_grad(CrossEntropyLoss(), (logits, torch.tensor([0, 1, 2]), {}))
    assert value.isfinite() and grad.isfinite().all()


def test_an_impossible_class_with_probability_zero_gives_no_nan():
    logits = random(3, 5)
    logits[:, 4] = float("-inf")
    probabilities = torch.tensor([[0.5, 0.5, 0, 0, 0]] * 3, dtype=torch.float64)
    value, grad = mean_and_grad(CrossEntropyLoss(), (logits, probabilities, {}))
    assert value.isfinite() and grad.isfinite().all()


def test_a_wrong_class_axis_is_an_error_that_names_the_right_one():
    with pytest.raises(LossError, match=r"logits \(2, 5, 3\) have their classes on axis -1.*for classes on axis 1 give class_axis=1"):
        CrossEntropyLoss()(random(2, 5, 3), LABELS, {})


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool)),
    ],
)
def test_logits_and_labels_that_do_not_fit_are_refused(logits, labels):
    with pytest.raises(LossError, match="CrossEntropyLoss: logits"):
        CrossEntropyLoss()(logits, labels, {})


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, NAN])
def test_a_smoothing_outside_zero_to_one_is_refused(smoothing):
    with pytest.raises(LossError, match=r"label_smoothing must be in \[0, 1\)"):
        CrossEntropyLoss(label_smoothing=smoothing)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_binary_cross_entropy_is_that_of_torch(dtype):
    logits, labels = random(4, 3), torch.tensor([[0, 1, 1]] * 4)
    expected = F.binary_cross_entropy_with_logits(logits, labels.double())
    torch.testing.assert_close(mean(BinaryCrossEntropyLoss()(logits, labels.to(dtype), {})), expected, rtol=1e-14, atol=0)


def test_binary_labels_of_another_shape_are_refused():
    with pytest.raises(LossError, match=r"BinaryCrossEntropyLoss: logits \(4, 1\) and labels \(4,\) must have one shape"):
        BinaryCrossEntropyLoss()(torch.zeros(4, 1), torch.zeros(4), {})
