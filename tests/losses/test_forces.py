"""Losses of forces and stresses worked by hand, and what they say when they cannot work."""

import pytest
import torch

from purestep.errors import LossError
from purestep.losses import ForceHuberLoss, ForceL2NormLoss, ForceMAELoss, ForceMSELoss, StressHuberLoss, StressMSELoss
from tests.losses.loss_examples import NAN, mean, mean_and_grad

# Errors are (3, 4, 0) on the only atom of the first graph, and (0, 0, 1), (0, 0, 2) on those of the second.
TARGET = torch.zeros(3, 3, dtype=torch.float64)
PREDICTION = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0]], dtype=torch.float64)
BATCH = {"batch": torch.tensor([0, 1, 1]), "ptr": torch.tensor([0, 1, 3])}

PADDED = torch.stack([torch.cat([PREDICTION[:1], torch.full((1, 3), NAN, dtype=torch.float64)]), PREDICTION[1:]])
PADDED_TARGET = torch.zeros_like(PADDED)
PADDED_BATCH = {"num_nodes_per_graph": torch.tensor([1, 2])}

BY_HAND = [
    (ForceMSELoss(), (25 / 3 + 5 / 6) / 2),
    (ForceMSELoss(normalize_by_atom_count=False), 30 / 9),
    (ForceMAELoss(), 10 / 9),
    (ForceMAELoss(normalize_by_atom_count=True), (7 / 3 + 3 / 6) / 2),
    (ForceHuberLoss(delta=2.0), (4 + 6 + 0.5 + 2) / 9),
    (ForceL2NormLoss(), (5 + 1.5) / 2),
    (ForceL2NormLoss(normalize_by_atom_count=False), 8 / 3),
]


@pytest.mark.parametrize(("term", "expected"), BY_HAND)
def test_values_by_hand(term, expected):
    assert mean(term(PREDICTION, TARGET, BATCH)) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("term", "expected"), BY_HAND)
@pytest.mark.parametrize(
    "batch", [PADDED_BATCH, {"atom_mask": torch.tensor([[True, False], [True, True]])}, {"ptr": torch.tensor([0, 1, 3])}]
)
def test_padded_forces_give_the_values_of_dense_ones(term, expected, batch):
    assert mean(term(PADDED, PADDED_TARGET, batch)) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("batch", [{"ptr": BATCH["ptr"]}, {"batch": BATCH["batch"], "num_graphs": 2}])
def test_graphs_are_told_from_whatever_the_batch_has(batch):
    assert torch.equal(ForceMSELoss()(PREDICTION, TARGET, batch).per_sample, ForceMSELoss()(PREDICTION, TARGET, BATCH).per_sample)


def test_a_mean_over_all_components_needs_no_graphs():
    sums = ForceMAELoss()(PREDICTION, TARGET, {})
    assert mean(sums) == pytest.approx(10 / 9, rel=1e-15)
    assert sums.per_sample is None


def test_the_reference_defaults_are_kept():
    kept = [(t.normalize_by_atom_count, t.ignore_nonfinite) for t in (ForceMSELoss(), ForceHuberLoss(), ForceL2NormLoss())]
    assert kept == [(True, False), (False, True), (True, True)]
    assert (ForceHuberLoss().delta, StressHuberLoss().delta, StressHuberLoss().ignore_nonfinite) == (0.01, 0.01, True)
    assert StressMSELoss().ignore_nonfinite is False


def test_two_graphs_of_which_one_is_labelled_count_one():
    target = TARGET.clone()
    target[0] = NAN
    sums = ForceMSELoss(ignore_nonfinite=True)(PREDICTION, target, BATCH)
    assert sums.denominator == 1
    assert mean(sums) == pytest.approx(5 / 6, rel=1e-15)


def test_an_unlabelled_component_leaves_the_others_of_its_atom():
    target = TARGET.clone()
    target[0, 1] = NAN
    assert ForceMAELoss()(PREDICTION, target, BATCH).denominator == 8


def test_an_unlabelled_component_takes_the_whole_vector_out_of_a_norm():
    target = TARGET.clone()
    target[0, 1] = NAN
    sums = ForceL2NormLoss(normalize_by_atom_count=False)(PREDICTION, target, BATCH)
    assert (sums.numerator, sums.denominator) == (3, 2)


def test_a_norm_has_a_second_derivative_where_the_error_is_zero():
    prediction = TARGET.clone().requires_grad_()
    first = torch.autograd.grad(mean(ForceL2NormLoss()(prediction, TARGET, BATCH)), prediction, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), prediction)[0]
    assert torch.equal(first, torch.zeros_like(first)) and second.isfinite().all()


def test_an_infinite_prediction_gives_no_nan_in_the_gradient_of_a_huber_loss():
    prediction = PREDICTION.clone()
    prediction[0, 0] = float("inf")
    assert mean_and_grad(ForceHuberLoss(), (prediction, TARGET, BATCH))[1].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 2), (3,), (1, 1, 3, 3)])
def test_other_layouts_are_refused(shape):
    with pytest.raises(LossError, match=r"forces must be \(N, 3\), or padded \(B, Nmax, 3\), got"):
        ForceMSELoss()(torch.zeros(shape), torch.zeros(shape), BATCH)


def test_a_mean_over_graphs_says_what_the_batch_lacks():
    with pytest.raises(
        LossError, match=r"averages over graphs, so the batch needs batch \(3,\) and ptr; it has x; or give normalize_by_atom_count=False"
    ):
        ForceMSELoss()(PREDICTION, TARGET, {"x": TARGET})


def test_an_index_without_the_number_of_graphs_is_refused():
    with pytest.raises(LossError, match="give it ptr or num_graphs; it has batch"):
        ForceMSELoss()(PREDICTION, TARGET, {"batch": BATCH["batch"]})


def test_padded_forces_say_what_the_batch_lacks():
    with pytest.raises(
        LossError, match=r"forces \(2, 2, 3\) are padded, so the batch needs num_nodes_per_graph \(2,\) or atom_mask \(2, 2\)"
    ):
        ForceMSELoss()(PADDED, PADDED_TARGET, {})


def test_a_batch_of_other_atoms_is_refused():
    with pytest.raises(LossError, match="prediction and target have 2 atoms, but the batch has 3"):
        ForceMSELoss()(PREDICTION[:2], TARGET[:2], BATCH)
    with pytest.raises(LossError, match=r"atom_mask \(4,\) should be \(3,\)"):
        ForceMSELoss()(PREDICTION, TARGET, {**BATCH, "atom_mask": torch.ones(4, dtype=torch.bool)})
    with pytest.raises(LossError, match=r"mask of atoms \(2, 3\) should be \(2, 2\)"):
        ForceMSELoss()(PADDED, PADDED_TARGET, {"atom_mask": torch.ones(2, 3, dtype=torch.bool)})


def test_stress_is_the_mean_over_nine_components_and_then_over_graphs():
    prediction = torch.stack([torch.eye(3), 2 * torch.eye(3)])
    assert mean(StressMSELoss()(prediction, torch.zeros(2, 3, 3), {})) == pytest.approx((3 / 9 + 12 / 9) / 2, rel=1e-6)  # float32
    assert mean(StressHuberLoss(delta=1.0)(prediction, torch.zeros(2, 3, 3), {})) == pytest.approx((1.5 / 9 + 4.5 / 9) / 2, rel=1e-6)


def test_stress_in_six_numbers_is_refused():
    with pytest.raises(LossError, match=r"stresses must be \(B, 3, 3\), one for each graph, got \(2, 6\)"):
        StressMSELoss()(torch.zeros(2, 6), torch.zeros(2, 6), {})
