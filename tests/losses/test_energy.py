"""Energy losses worked by hand, and what they say when they cannot work."""

import pytest
import torch

from purestep.data.batch import AtomicBatch
from purestep.errors import LossError
from purestep.losses import EnergyHuberLoss, EnergyMAELoss, EnergyMSELoss
from tests.losses.loss_examples import NAN, mean

PREDICTION = torch.tensor([[1.0], [5.0]], dtype=torch.float64)
TARGET = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
BATCH = {"num_nodes_per_graph": torch.tensor([2, 4])}


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (EnergyMSELoss(), (1 + 4) / 2),
        (EnergyMSELoss(per_atom=True), (1 / 2 + 4 / 4) / 6),  # N (e/N)^2, weighted by N
        (EnergyMAELoss(), (1 + 2) / 6),
        (EnergyMAELoss(per_atom=False), 1.5),
        (EnergyHuberLoss(), 0.01 * (0.5 - 0.005)),  # both errors are 0.5 eV/atom; each graph counts once
        (EnergyHuberLoss(per_atom=False, delta=1.0), (0.5 + 1.5) / 2),
    ],
)
def test_values_by_hand(term, expected):
    assert mean(term(PREDICTION, TARGET, BATCH)) == pytest.approx(expected, rel=1e-15)


def test_the_reference_defaults_are_kept():
    assert (EnergyMSELoss().per_atom, EnergyMSELoss().ignore_nonfinite) == (False, False)
    assert (EnergyMAELoss().per_atom, EnergyMAELoss().ignore_nonfinite) == (True, True)
    assert (EnergyHuberLoss().per_atom, EnergyHuberLoss().ignore_nonfinite, EnergyHuberLoss().delta) == (True, True, 0.01)


def test_two_graphs_of_which_one_is_labelled_count_one():
    sums = EnergyMSELoss(ignore_nonfinite=True)(PREDICTION, torch.tensor([[NAN], [3.0]], dtype=torch.float64), BATCH)
    assert (sums.numerator, sums.denominator) == (4, 1)


def test_atoms_of_an_unlabelled_graph_are_not_in_the_denominator():
    sums = EnergyMSELoss(per_atom=True, ignore_nonfinite=True)(PREDICTION, torch.tensor([[NAN], [3.0]], dtype=torch.float64), BATCH)
    assert (sums.numerator, sums.denominator) == (1, 4)


def test_a_graph_without_atoms_counts_in_no_mean_per_atom():
    sums = EnergyHuberLoss()(PREDICTION, TARGET, {"num_nodes_per_graph": torch.tensor([0, 4])})
    assert sums.denominator == 1
    assert mean(sums) == pytest.approx(0.01 * (0.5 - 0.005), rel=1e-15)


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        {"ptr": torch.tensor([0, 2, 6])},
        {"num_nodes_per_graph": torch.tensor([[True, True, False, False], [True] * 4])},
        AtomicBatch(torch.zeros(6, 3), torch.ones(6), torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([0, 2, 6])),
    ],
)
def test_the_number_of_atoms_is_read_from_whatever_the_batch_has(batch):
    assert mean(EnergyMAELoss()(PREDICTION, TARGET, batch)) == 0.5


def test_energies_may_have_one_axis():
    assert mean(EnergyMSELoss()(PREDICTION[:, 0], TARGET[:, 0], {})) == 2.5


def test_offsets_in_float32_are_taken_off_before_anything_is_divided():
    offset = torch.tensor([[1e6], [1e6]])
    sums = EnergyMSELoss(per_atom=True)(offset + torch.tensor([[1.0], [2.0]]), offset, BATCH)
    assert mean(sums) == 0.25


def test_one_and_two_axes_are_not_broadcast():
    with pytest.raises(
        LossError, match=r"EnergyMSELoss: prediction \(2, 1\) and target \(2,\) must have one shape.*reshape the prediction to \(2,\)"
    ):
        EnergyMSELoss()(PREDICTION, TARGET[:, 0], {})


def test_energies_of_atoms_are_refused():
    with pytest.raises(LossError, match=r"energies must be \(B, 1\) or \(B,\), one for each graph, got \(2, 3\)"):
        EnergyMSELoss()(torch.zeros(2, 3), torch.zeros(2, 3), {})


def test_a_mean_per_atom_says_what_the_batch_lacks():
    with pytest.raises(
        LossError,
        match=r"EnergyMAELoss divides by the number of atoms, so the batch needs num_nodes_per_graph \(2,\) or ptr; it has energy",
    ):
        EnergyMAELoss()(PREDICTION, TARGET, {"energy": TARGET})


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(LossError, match="the batch has 3 graphs by num_nodes_per_graph, but the prediction has 2"):
        EnergyMAELoss()(PREDICTION, TARGET, {"num_nodes_per_graph": torch.tensor([1, 2, 3])})


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(LossError, match=r"graph_mask \(3,\) should be \(2,\)"):
        EnergyMSELoss()(PREDICTION, TARGET, {"graph_mask": torch.ones(3, dtype=torch.bool)})


def test_something_that_is_no_tensor_is_refused():
    with pytest.raises(LossError, match="EnergyMSELoss: the prediction must be a tensor, got float"):
        EnergyMSELoss()(1.0, TARGET, {})


@pytest.mark.parametrize("delta", [0.0, -1.0, NAN, float("inf")])
def test_a_threshold_that_is_none_is_refused(delta):
    with pytest.raises(LossError, match="delta must be positive and finite"):
        EnergyHuberLoss(delta=delta)
