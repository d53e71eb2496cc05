"""Ways to make one gradient of several, by hand."""

import pytest
import torch

from purestep.losses.gradient_surgery import balance_norms, project_conflicts, weighted_sum
from purestep.testing import assert_trees_close


def trees(*rows):
    return [{"a": torch.tensor(row[:1], dtype=torch.float64), "b": torch.tensor(row[1:], dtype=torch.float64)} for row in rows]


def numbers(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def flat(tree):
    return [*tree["a"].tolist(), *tree["b"].tolist()]


def test_a_weighted_sum_is_one():
    assert flat(weighted_sum(trees([1.0, 2.0], [10.0, 20.0]), numbers(2.0, 0.5))) == [7.0, 14.0]


def test_conflicting_gradients_lose_what_works_against_the_other():
    # (1, 0) and (-1, 1): each minus its part along the other, (1, 0) + (-1, 1) / 2 = (1/2, 1/2) and (0, 1)
    assert flat(project_conflicts(trees([1.0, 0.0], [-1.0, 1.0]), numbers(1.0, 1.0))) == pytest.approx([0.5, 1.5], abs=1e-15)


def test_gradients_that_agree_are_added_as_they_are():
    given, weights = trees([1.0, 0.5], [0.2, 1.0], [3.0, 0.0]), numbers(1.0, 2.0, 0.5)
    assert flat(project_conflicts(given, weights)) == flat(weighted_sum(given, weights))


def test_opposite_gradients_cancel_and_a_zero_one_disturbs_nothing():
    assert flat(project_conflicts(trees([1.0, 2.0], [-1.0, -2.0]), numbers(1.0, 1.0))) == [0.0, 0.0]
    assert flat(project_conflicts(trees([1.0, 2.0], [0.0, 0.0]), numbers(1.0, 1.0))) == [1.0, 2.0]


def test_balanced_gradients_have_one_norm_the_mean_of_theirs():
    # norms 1 and 5, mean 3
    assert flat(balance_norms(trees([1.0, 0.0], [3.0, 4.0]), numbers(1.0, 1.0))) == pytest.approx([3.0 + 1.8, 2.4], abs=1e-14)


def test_a_gradient_of_zero_is_left_out_of_the_balance():
    assert flat(balance_norms(trees([0.0, 0.0], [3.0, 4.0]), numbers(1.0, 1.0))) == pytest.approx([3.0, 4.0], abs=1e-14)
    assert flat(balance_norms(trees([0.0, 0.0], [0.0, 0.0]), numbers(1.0, 1.0))) == [0.0, 0.0]


@pytest.mark.parametrize("combine", [weighted_sum, project_conflicts, balance_norms])
def test_inputs_stay_as_they_are(combine):
    given, weights = trees([1.0, 0.0], [-1.0, 1.0]), numbers(1.0, 2.0)
    before = [{name: leaf.clone() for name, leaf in tree.items()} for tree in given]
    combine(given, weights)
    assert_trees_close(given, before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("combine", [weighted_sum, project_conflicts, balance_norms])
def test_dtypes_of_gradients_are_kept(combine):
    given = [{name: leaf.float() for name, leaf in tree.items()} for tree in trees([1.0, 0.0], [-1.0, 1.0])]
    assert {leaf.dtype for leaf in combine(given, numbers(1.0, 2.0)).values()} == {torch.float32}
