"""What the observing hooks report, worked by hand."""

import pytest
import torch

import purestep as ps
from purestep.errors import HookError
from tests.examples_of_models import batches, poisoned, run, training


def linear(params, batch):
    """A loss whose gradient is the batch."""
    return (params["a"]["w"] * batch["w"]).sum() + (params["a"]["b"] * batch["b"]).sum() + (params["c"] * batch["c"]).sum()


PARAMS = {"a": {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])}, "c": torch.tensor([2.0])}
GRADIENT = {"w": torch.tensor([2.0, 3.0]), "b": torch.tensor([6.0]), "c": torch.tensor([-1.0])}


def metrics_of(hook, loss=linear, params=PARAMS, data=(GRADIENT,), optimizer=None):
    optimizer = optimizer or ps.sgd(0.1)
    state = ps.init_state(params, optimizer, (hook,))
    return run(ps.make_step(loss, optimizer, (hook,)), state, data)[1]


def test_gradient_norm_is_the_root_of_the_sum_of_all_squares():
    assert metrics_of(ps.hooks.gradient_norm())["gradient_norm"].item() == pytest.approx(50**0.5, rel=1e-12)


def test_layer_gradient_norms_group_leaves_by_the_module_that_holds_them():
    found = metrics_of(ps.hooks.layer_gradient_norms("g"))
    assert (found["g/a"].item(), found["g"].item()) == (7.0, 1.0)


def test_update_ratios_compare_updates_with_weights():
    found = metrics_of(ps.hooks.update_ratios("r"))
    # the updates of `a` are -0.1 (2, 3, 6), its weights then (2.8, 3.7, -0.6); those of `c` 0.1, and 2.1
    assert found["r/a"].item() == pytest.approx(0.7 / (2.8**2 + 3.7**2 + 0.6**2) ** 0.5, rel=1e-6)
    assert found["r"].item() == pytest.approx(0.1 / 2.1, rel=1e-6)


def test_update_ratios_are_zero_while_a_window_is_open():
    optimizer = ps.chain(ps.accumulate(2), ps.sgd(0.1))
    assert metrics_of(ps.hooks.update_ratios("r"), optimizer=optimizer)["r/a"].item() == 0.0


def test_gradient_statistics_see_no_loss_scale_and_no_frozen_leaves():
    tr = training(optimizer=ps.sgd(0.1), trainable="decoder*", hooks=(ps.hooks.layer_gradient_norms("g"),))
    _, metrics = tr.step(tr.init(), batches(1)[0])
    assert [name for name in metrics if name.startswith("g")] == ["g/encoder"]  # decoder.weight is tied to encoder.weight


def test_nonfinite_location_names_the_leaf_of_the_gradient_and_of_the_predictions():
    bad = {**GRADIENT, "c": torch.tensor([float("inf")])}
    found = metrics_of(ps.hooks.nonfinite_location("bad"), data=(bad,))
    assert (found["bad/loss"].item(), found["bad/gradients"].item()) == (1, ps.tree.paths(PARAMS).index("c"))
    fine = metrics_of(ps.hooks.nonfinite_location("bad"))
    assert (fine["bad/loss"].item(), fine["bad/gradients"].item(), fine["bad/predictions"].item()) == (0, -1, -1)


def test_nonfinite_location_sees_predictions():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)), hooks=(ps.hooks.nonfinite_location(),))
    _, metrics = tr.step(tr.init(), poisoned(batches(1)[0]))
    assert (metrics["nonfinite/predictions"].item(), metrics["nonfinite/loss"].item()) == (0, 1)


def constant(params, batch):
    return batch["loss"] + 0.0 * params.sum()


def losses(*numbers):
    return [{"loss": torch.tensor(number, dtype=torch.float64)} for number in numbers]


def test_loss_statistics_are_weighted_means_that_include_this_batch():
    found = metrics_of(ps.hooks.loss_statistics(0.5), constant, torch.ones(1), losses(1.0, 2.0, 4.0))
    weights = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64) / 1.75
    seen = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    mean = (weights * seen).sum()
    assert found["loss_statistics/mean"].item() == pytest.approx(mean.item(), rel=1e-14)
    assert found["loss_statistics/std"].item() == pytest.approx((weights * (seen - mean) ** 2).sum().sqrt().item(), rel=1e-12)
    assert (found["loss_statistics/min"].item(), found["loss_statistics/max"].item()) == (1.0, 4.0)


def test_loss_statistics_leave_out_what_is_not_finite():
    found = metrics_of(ps.hooks.loss_statistics(0.5), constant, torch.ones(1), losses(1.0, float("nan"), float("inf")))
    assert (found["loss_statistics/mean"].item(), found["loss_statistics/max"].item()) == (1.0, 1.0)


def by_sample(params, batch):
    errors = batch["errors"] + 0.0 * params.sum()
    return ps.Sums(torch.nan_to_num(errors).sum(), torch.tensor(3.0), errors)


ERRORS = [
    {"errors": torch.tensor([1.0, 5.0, 2.0]), "id": torch.tensor([10, 11, 12])},
    {"errors": torch.tensor([float("nan"), 3.0, 0.5]), "id": torch.tensor([20, 21, 22])},
]


def hardest(hook, data=ERRORS, **options):
    state = ps.init_state(torch.ones(1), ps.sgd(0.1), (hook,))
    return run(ps.make_step(by_sample, ps.sgd(0.1), (hook,), **options), state, data)[0].hook_state["hard_examples"]


def test_hard_examples_are_the_largest_losses_with_their_names_and_batches():
    kept = hardest(ps.hooks.hard_examples(3, "id"))
    assert kept.loss.tolist() == [5.0, 3.0, 2.0]
    assert kept.sample.tolist() == [11, 21, 12]
    assert kept.batch_count.tolist() == [0, 1, 0]


def test_hard_examples_without_names_are_known_by_their_place_and_leave_empty_rows():
    kept = hardest(ps.hooks.hard_examples(4), ERRORS[:1])
    assert kept.loss.tolist() == [5.0, 2.0, 1.0, float("-inf")]
    assert kept.sample.tolist() == [1, 2, 0, -1]


def test_hard_examples_of_a_cut_batch_are_those_of_the_whole():
    whole, cut = hardest(ps.hooks.hard_examples(3, "id")), hardest(ps.hooks.hard_examples(3, "id"), microbatches=3)
    assert ps.tree.structure(whole) == ps.tree.structure(cut)
    assert whole.sample.tolist() == cut.sample.tolist()


def test_hard_examples_want_a_loss_that_speaks_of_samples():
    with pytest.raises(HookError, match="gives values by sample"):
        metrics_of(ps.hooks.hard_examples())


def test_the_noise_scale_of_two_gradients_is_that_of_the_formulas():
    hook = ps.hooks.gradient_noise_scale(window=2)
    data = [{"g": torch.tensor([3.0, 1.0], dtype=torch.float64)}, {"g": torch.tensor([1.0, 1.0], dtype=torch.float64)}]
    found = metrics_of(hook, lambda params, batch: (params * batch["g"]).sum(), torch.ones(2, dtype=torch.float64), data)
    # mean |g|^2 = 6, |G|^2 = 5: signal 2 * 5 - 6 = 4, noise (6 - 5) / (1 / 2) = 2
    assert found["noise_scale"].item() == pytest.approx(0.5, rel=1e-12)


def test_the_noise_scale_is_nan_before_the_first_window_is_full():
    assert metrics_of(ps.hooks.gradient_noise_scale(2))["noise_scale"].isnan()


def test_the_noise_scale_of_equal_gradients_is_zero():
    assert metrics_of(ps.hooks.gradient_noise_scale(2), data=(GRADIENT,) * 4)["noise_scale"].item() == pytest.approx(0.0, abs=1e-12)
