"""Bounds on the updates: exact values, and the corners where norms overflow or vanish."""

import pytest
import torch

from purestep import schedules
from purestep.core.selection import masked
from purestep.core.transform import apply_updates, chain, set_hyperparams
from purestep.transforms import (
    adaptive_grad_clip,
    clip,
    clip_by_block_rms,
    clip_by_global_norm,
    clip_by_leaf_norm,
    clip_by_percentile,
    keep_params_nonnegative,
    zero_nans,
)


def once(transform, updates, params=None):
    params = updates if params is None else params
    return transform.update(updates, transform.init(params), params)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_gradients_do_not_overflow_the_norm(dtype):
    updates, _ = once(clip_by_global_norm(1.0), {"w": torch.full((3,), 1e20, dtype=dtype)})
    torch.testing.assert_close(updates["w"].double(), torch.full((3,), 3**-0.5, dtype=torch.float64), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_zero_updates_stay_zero_whatever_the_threshold(limit):
    updates, state = once(clip_by_global_norm(limit), {"w": torch.zeros(3)})
    assert updates["w"].tolist() == [0.0] * 3
    assert float(state.metrics["clip_factor"]) == 1.0


def test_a_threshold_of_zero_gives_zeros():
    updates, _ = once(clip_by_global_norm(0.0), {"w": torch.ones(3)})
    assert updates["w"].tolist() == [0.0] * 3


def test_one_factor_for_all_leaves_and_none_below_the_threshold():
    tall, state = once(clip_by_global_norm(1.0), {"a": torch.tensor([3.0]), "b": torch.tensor(4.0)})
    low, _ = once(clip_by_global_norm(6.0), {"a": torch.tensor([3.0]), "b": torch.tensor(4.0)})
    assert (float(tall["a"]), float(tall["b"])) == (pytest.approx(0.6), pytest.approx(0.8))
    assert (float(low["a"]), float(low["b"])) == (3.0, 4.0)
    assert float(state.metrics["update/grad_norm"]) == 5.0


def test_leaves_that_are_masked_out_count_in_no_norm():
    params = {"frozen": torch.zeros(1), "train": torch.zeros(1)}
    updates, _ = once(masked(clip_by_global_norm(1.0), "train"), {"frozen": torch.tensor([100.0]), "train": torch.tensor([0.5])}, params)
    assert updates["train"].tolist() == [0.5]


def test_the_threshold_may_be_a_schedule_and_a_number_can_be_set():
    transform = clip_by_global_norm(schedules.linear(1.0, 2.0, 1))
    updates, params = {"w": torch.tensor([8.0])}, {"w": torch.zeros(1)}
    first, state = transform.update(updates, transform.init(params), params)
    second, _ = transform.update(updates, state, params)
    assert (float(first["w"]), float(second["w"])) == (1.0, 2.0)
    fixed = clip_by_global_norm(1.0)
    assert float(fixed.update(updates, set_hyperparams(fixed.init(params), max_norm=4.0), params)[0]["w"]) == 4.0


@pytest.mark.parametrize("make", [clip, clip_by_global_norm, clip_by_block_rms, clip_by_leaf_norm, adaptive_grad_clip])
@pytest.mark.parametrize("threshold", [-1.0, float("nan")])
def test_a_negative_threshold_is_refused(make, threshold):
    with pytest.raises(ValueError, match=r"must lie in \[0, inf\]"):
        make(threshold)


def test_clip_bounds_each_element():
    updates, _ = once(clip(1.0), {"w": torch.tensor([-3.0, 0.5, 2.0, float("inf")])})
    assert updates["w"].tolist() == [-1.0, 0.5, 1.0, 1.0]


def test_blocks_and_leaves_are_bounded_one_by_one():
    updates = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.3, 0.4])}
    by_rms, _ = once(clip_by_block_rms(1.0), updates)
    by_norm, _ = once(clip_by_leaf_norm(1.0), updates)
    torch.testing.assert_close(by_rms["a"], updates["a"] / 12.5**0.5)
    torch.testing.assert_close(by_norm["a"], updates["a"] / 5.0)
    assert by_rms["b"].tolist() == by_norm["b"].tolist() == updates["b"].tolist()


def test_adaptive_clipping_knows_both_layouts():
    params = {"w": torch.tensor([[3.0, 4.0], [0.0, 0.0]])}
    updates = {"w": torch.tensor([[3.0, 4.0], [3.0, 4.0]])}
    rows, _ = once(adaptive_grad_clip(0.5, eps=0.1, layout="out_in"), updates, params)
    columns, _ = once(adaptive_grad_clip(0.5, eps=0.1, layout="in_out"), updates, params)
    torch.testing.assert_close(rows["w"].norm(dim=1), torch.tensor([2.5, 0.05]))
    torch.testing.assert_close(columns["w"].norm(dim=0), torch.tensor([1.5, 2.0]))


def test_percentile_clipping_follows_the_recent_norms_and_not_the_spike():
    transform, params = clip_by_percentile(50.0, window=3, warmup=3), {"w": torch.zeros(1, dtype=torch.float64)}
    state, out = transform.init(params), []
    for norm in [1.0, 2.0, 3.0, 100.0, float("nan"), 2.5]:
        updates, state = transform.update({"w": torch.tensor([norm], dtype=torch.float64)}, state, params)
        out.append(float(updates["w"]))
    assert out[:4] == [1.0, 2.0, 3.0, 2.0]
    assert out[5] == 2.5  # the median of 2, 3 and 100 is 3
    assert state.norms.values.isfinite().all()


def test_zero_nans_keeps_infinity_and_says_where():
    updates, state = once(zero_nans(), {"a": torch.tensor([float("nan"), float("inf")]), "b": torch.ones(1)})
    assert updates["a"].tolist() == [0.0, float("inf")]
    assert (bool(state.found_nan["a"]), bool(state.found_nan["b"])) == (True, False)


def test_parameters_can_be_kept_from_becoming_negative():
    params = {"w": torch.tensor([1.0, 0.2])}
    updates, _ = once(chain(keep_params_nonnegative()), {"w": torch.tensor([-0.5, -0.5])}, params)
    assert apply_updates(params, updates)["w"].tolist() == [0.5, 0.0]
