"""Faults that shared training is known for, each with the right outcome."""

import pytest
import torch

from tests.distributed import faults
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed


def test_a_mean_over_unequal_shares_is_the_mean_over_samples():
    # mean of (w x)^2 over 1, 2, 3, 4 at w = 1: loss 30 / 4, gradient 2 * 30 / 4
    for found in run_ranks(2, faults.shares_of_four_numbers):
        assert {name: pytest.approx(pair, rel=1e-12) for name, pair in found.items()} == dict.fromkeys(found, (7.5, 15.0))


@pytest.mark.parametrize("chain", faults.CHAINS)
def test_a_nan_on_one_rank_is_skipped_on_all_and_leaves_them_alike(chain):
    (state, applied), (other, applied_there) = run_ranks(2, faults.nan_on_rank_one, chain, timeout_seconds=30)
    local = {name for name in state if ".accumulate.total" in name}
    assert applied == applied_there
    assert [name for name in state.keys() - local if not torch.equal(state[name], other[name])] == []
    assert torch.isfinite(state["params.w"])


def test_ranks_draw_different_dropout_and_the_same_again():
    masks = run_ranks(4, faults.dropout_masks)
    first = [mask[0] for mask in masks]
    agreement = [float((a == b).double().mean()) for i, a in enumerate(first) for b in first[:i]]
    assert all(0.4 < share < 0.6 for share in agreement)
    assert all(torch.equal(mask[0], mask[2]) and not torch.equal(mask[0], mask[1]) for mask in masks)


def test_a_rank_may_capture_its_step_again_while_the_others_do_not():
    (captures, state, eager), (more_captures, _, _) = run_ranks(2, faults.captured_at_different_times)
    assert (captures, more_captures) == (1, 2)
    assert all(torch.allclose(state[name], eager[name], rtol=1e-12, atol=1e-12) for name in eager)
