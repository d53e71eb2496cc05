"""Scaling, clipping and values that are not finite: the order of things, and what is left afterwards."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import run


def linear(params, batch):
    """A loss whose gradient is the batch."""
    return sum((p * b).sum() for p, b in zip(params.values(), batch.values(), strict=True))


def start(*parts, count=2, dtype=torch.float32):
    optimizer = ps.chain(*parts)
    params = {name: torch.zeros(count, dtype=dtype) for name in ("a", "b")}
    return ps.make_step(linear, optimizer), ps.init_state(params, optimizer)


def gradient(a, b):
    return {"a": torch.tensor(a), "b": torch.tensor(b)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_in_one_of_two_parameters_moves_neither_and_is_named(bad):
    step, state = start(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adam(0.1))
    good = gradient([1.0, 2.0], [0.5, -1.0])
    before, _ = step(state, good)
    after, metrics = step(before, gradient([1.0, 2.0], [bad, 0.0]))
    assert_trees_equal((after.params, after.opt_state["adam"]), (before.params, before.opt_state["adam"]))
    assert (metrics["update/applied"].item(), after.counters.step_count.item()) == (False, 1)
    skipped = metrics["skip_nonfinite/by_loss"].item() + metrics["skip_nonfinite/by_updates"].item()
    assert (skipped, ps.tree.paths(after.params)[metrics["skip_nonfinite/leaf"].item()]) == (1, "b")
    again, _ = step(after, good)
    assert_trees_equal(again.params, step(before, good)[0].params)


def test_skipped_batches_do_not_stretch_the_bias_correction_of_adam():
    step, state = start(ps.skip_nonfinite(), ps.adam(0.1))
    good, bad = gradient([1.0, 2.0], [0.5, -1.0]), gradient([float("nan"), 0.0], [0.0, 0.0])
    with_bad, _ = run(step, state, [bad, bad, good, bad, good])
    without, _ = run(step, state, [good, good])
    assert_trees_equal((with_bad.params, with_bad.opt_state["adam"]), (without.params, without.opt_state["adam"]))


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**20])
def test_clipping_sees_unscaled_gradients_of_the_whole_window_once(scale):
    step, state = start(ps.dynamic_loss_scale(scale), ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.sgd(1.0), count=1)
    after, metrics = run(step, state, [gradient([6.0], [0.0]), gradient([0.0], [8.0])])
    assert [-after.params["a"].item(), -after.params["b"].item()] == pytest.approx([0.6, 0.8], abs=1e-6)
    assert metrics["update/grad_norm"].item() == pytest.approx(5.0, rel=1e-6)


def test_gradients_of_micro_batches_are_not_clipped_one_by_one():
    step, state = start(ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.sgd(1.0), count=1, dtype=torch.float64)
    after, _ = run(step, state, [gradient([3.0], [0.0]), gradient([0.0], [4.0])])
    # clipped one by one: (0.5, 0.5)
    assert [-after.params["a"].item(), -after.params["b"].item()] == pytest.approx([0.6, 0.8], abs=1e-12)


def test_an_infinite_gradient_never_turns_finite_ones_into_zeros():
    step, state = start(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.sgd(1.0))
    after, metrics = step(state, gradient([3.0, 4.0], [float("inf"), 0.0]))
    assert_trees_equal(after.params, state.params)
    assert torch.isinf(metrics["update/grad_norm"])


def test_a_loss_that_is_not_a_number_is_reported_as_such():
    step, state = start(ps.skip_nonfinite(), ps.sgd(1.0))
    _, metrics = step(state, gradient([float("nan"), 0.0], [0.0, 0.0]))
    assert torch.isnan(metrics["loss/total"])


def test_evaluating_first_under_autocast_takes_no_gradient_away():
    tr = ps.Training(
        nn.Linear(3, 2),
        loss=lambda predictions, batch: predictions["y"].float().square().mean(),
        optimizer=ps.sgd(0.1),
        forward=lambda model, batch: {"y": model(batch)},
        precision="bf16",
    )
    state, batch = tr.init(), torch.ones(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        tr.evaluate(state, batch)
        after, metrics = tr.step(state, batch)
    assert metrics["update/grad_norm"] > 0
    assert torch.all(after.params["weight"] != state.params["weight"])
