"""Averages of the weights: values by hand, and when they move."""

import pytest
import torch

import purestep as ps
from purestep.core.state import Counters
from purestep.errors import HookError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Net, batches, poisoned, run, seeded, training


def update(hook, average, params, count=0, applied=None):
    """The average after an update to these parameters, `count` updates having been applied before."""
    counters = Counters(*(torch.tensor(count) for _ in range(5)))
    ctx = ps.StepContext(ps.Stage.AFTER_OPTIMIZER_STEP, None, counters, params, {}, torch.tensor(0), {}, applied=applied)
    return hook.update(average, ctx)[0]


def follow(hook, values, dtype=torch.float64):
    """The average after parameters took these values, one applied update each; the first is that at the beginning."""
    first, *later = [torch.tensor(value, dtype=dtype) for value in values]
    average = ps.init_state(first, ps.sgd(0.0), (hook,)).hook_state[hook.name]
    for count, params in enumerate(later):
        average = update(hook, average, params, count)
    return average.params


def test_ema_moves_by_one_minus_decay_towards_the_new_weights():
    # 0.9 (0.9 * 1 + 0.1 * 2) + 0.1 * 4
    assert follow(ps.hooks.ema(0.9), [1.0, 2.0, 4.0]).item() == pytest.approx(1.39, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ema_of_half_precision_weights_is_kept_in_float32_and_moves(dtype):
    average = follow(ps.hooks.ema(0.9999), [1.0] + [2.0] * 1000, dtype)
    assert average.dtype == torch.float32
    # 2 - 0.9999^1000; float32 rounds a thousand times by 6e-8
    assert average.item() == pytest.approx(1.0951671, abs=5e-5)


def test_debias_forgets_where_the_average_began():
    # weights 0.1 * 0.9 and 0.1, divided by their sum 0.19
    assert follow(ps.hooks.ema(0.9, debias=True), [7.0, 2.0, 4.0]).item() == pytest.approx((0.09 * 2 + 0.1 * 4) / 0.19, abs=1e-14)


def test_ema_takes_its_decay_from_a_schedule_of_the_averaged_steps():
    # decays 1/10 and 2/11
    expected = 2 / 11 * (0.1 * 1 + 0.9 * 2) + 9 / 11 * 4
    assert follow(ps.hooks.ema(ps.hooks.warmup_decay(0.999)), [1.0, 2.0, 4.0]).item() == pytest.approx(expected, abs=1e-14)


def test_warmup_decay_ends_at_the_decay():
    assert ps.hooks.warmup_decay(0.99)(10**6).item() == 0.99


def test_ema_copies_the_weights_until_its_start():
    assert follow(ps.hooks.ema(0.9, start_step=2), [1.0, 5.0, 3.0]).item() == 3.0
    assert follow(ps.hooks.ema(0.9, start_step=2), [1.0, 5.0, 3.0, 4.0]).item() == pytest.approx(0.9 * 3 + 0.1 * 4, abs=1e-15)


def test_ema_counts_applied_updates_for_its_period():
    # of the updates 1 to 5 the second and the fourth
    expected = 0.5 * (0.5 * 1 + 0.5 * 3) + 0.5 * 5
    assert follow(ps.hooks.ema(0.5, update_every=2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).item() == pytest.approx(expected, abs=1e-15)


def test_swa_is_the_mean_of_the_weights_after_its_start():
    assert follow(ps.hooks.swa(start_step=1), [9.0, 9.0, 1.0, 2.0, 6.0]).item() == pytest.approx(3.0, abs=1e-15)


def test_polyak_prefers_later_weights():
    # eta = 3: rates 4/4, 4/5
    assert follow(ps.hooks.polyak(3.0), [9.0, 1.0, 2.0]).item() == pytest.approx(0.2 * 1 + 0.8 * 2, abs=1e-15)


@pytest.mark.parametrize("hook", [ps.hooks.ema(0.9, debias=True), ps.hooks.swa(), ps.hooks.polyak(2.0), ps.hooks.ema(0.9, start_step=3)])
def test_a_vetoed_update_leaves_an_average_as_it_is(hook):
    average = ps.init_state(torch.tensor(1.0), ps.sgd(0.0), (hook,)).hook_state[hook.name]
    assert_trees_equal(update(hook, average, torch.tensor(5.0), applied=torch.tensor(False)), average)


def test_eight_batches_in_windows_of_four_are_two_updates_of_the_average():
    tr = training(optimizer=ps.chain(ps.accumulate(4), ps.sgd(0.1)), hooks=(ps.hooks.swa(),))
    state, _ = run(tr.step, tr.init(), batches(8))
    assert state.hook_state["swa"].memory.item() == 2


def test_the_average_of_an_update_rejected_for_nan_is_that_before():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)), hooks=(ps.hooks.ema(0.9),))
    good, bad = batches(2)
    state, _ = tr.step(tr.init(), good)
    assert_trees_equal(tr.step(state, poisoned(bad))[0].hook_state, state.hook_state)


def test_buffers_are_averaged_if_floating_and_copied_if_whole_numbers():
    tr = training(hooks=(ps.hooks.ema(0.5),))
    first = tr.init()
    state, _ = run(tr.step, first, batches(3))
    kept = state.hook_state["ema"].buffers
    assert kept["norm.num_batches_tracked"].item() == 3
    assert kept["norm.num_batches_tracked"].dtype == torch.int64
    assert torch.all((kept["norm.running_mean"] - state.buffers["norm.running_mean"]).abs() > 0)


def test_average_gives_the_dtypes_of_the_model_and_serves_evaluate():
    tr = training(seeded(Net).float(), hooks=(ps.hooks.ema(0.9), ps.hooks.swa()))
    data = [ps.tree.cast(batch, torch.float32) for batch in batches(3)]
    state, _ = run(tr.step, tr.init(), data)
    params, buffers = ps.hooks.average(state, "swa")
    assert [leaf.dtype for leaf in ps.tree.leaves((params, buffers))] == [
        leaf.dtype for leaf in ps.tree.leaves((state.params, state.buffers))
    ]
    averaged, _ = tr.evaluate(state, data[0], params, buffers)
    assert torch.any(averaged["y"] != tr.evaluate(state, data[0])[0]["y"])


def test_average_of_a_bfloat16_model_is_bfloat16():
    hook = ps.hooks.ema(0.9)
    state = ps.init_state({"w": torch.ones(2, dtype=torch.bfloat16)}, ps.sgd(0.1), (hook,))
    assert ps.hooks.average(state)[0]["w"].dtype == torch.bfloat16


def test_average_of_several_models_keeps_their_names():
    hook = ps.hooks.ema(0.9)
    state = ps.init_state({"student": {"w": torch.ones(2)}, "teacher": {"w": torch.zeros(2)}}, ps.sgd(0.1), (hook,))
    assert_trees_equal(ps.hooks.average(state)[0], state.params)


def test_average_names_the_averages_that_there_are():
    state = ps.init_state(torch.ones(()), ps.sgd(0.1), (ps.hooks.swa(), ps.hooks.gradient_norm()))
    with pytest.raises(HookError, match=r"no average of weights called 'ema', only \['swa'\]"):
        ps.hooks.average(state)


def test_two_averages_of_different_decay_live_side_by_side():
    tr = training(hooks=(ps.hooks.ema(0.5, "fast"), ps.hooks.ema(0.99, "slow")))
    first = tr.init()
    state, _ = run(tr.step, first, batches(3))
    moved = [ps.tree.global_norm(ps.tree.map(torch.sub, ps.hooks.average(state, name)[0], first.params)) for name in ("fast", "slow")]
    assert moved[0] > 10 * moved[1]


def test_the_decay_is_a_leaf_that_can_be_set():
    state = ps.init_state(torch.ones(()), ps.sgd(0.1), (ps.hooks.ema(0.9),))
    assert ps.set_hyperparams(state.hook_state, decay=0.5)["ema"].memory.decay.value.item() == 0.5


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ps.hooks.ema, {"decay": 1.0}),
        (ps.hooks.ema, {"decay": -0.1}),
        (ps.hooks.ema, {"decay": float("nan")}),
        (ps.hooks.ema, {"update_every": 0}),
        (ps.hooks.swa, {"start_step": -1}),
        (ps.hooks.polyak, {"eta": -1.0}),
    ],
)
def test_impossible_averages_are_refused(make, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make(**options)
