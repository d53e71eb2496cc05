"""Half precision: autocast over forward and loss, wide sums, loss scaling as a gate with a state."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Net, Plain, batches, run, seeded, training

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def half(precision, *parts, model=None, **changes):
    """A float32 training under autocast."""
    scaling = (ps.dynamic_loss_scale(2.0**10, growth_interval=3),) if precision == "fp16" else ()
    optimizer = ps.chain(*scaling, *parts, ps.adamw(1e-2))
    return training((model or seeded(Net)).float(), optimizer, precision=precision, **changes)


def data(count, **options):
    return [ps.tree.cast(batch, torch.float32) for batch in batches(count, **options)]


def loss_in_float32(predictions, batch):
    return (predictions["y"].float() - batch["y"]).square().mean()


@pytest.mark.parametrize("precision", sorted(HALF))
def test_the_forward_runs_in_half_precision_and_state_and_loss_stay_wide(precision):
    seen = {}

    def look(state, ctx):
        seen["dtype"] = ctx.predictions["y"].dtype
        return state, ctx

    hook = ps.Hook("look", frozenset({ps.Stage.AFTER_FORWARD}), lambda state: (), look)
    tr = half(precision, hooks=(hook,), loss=loss_in_float32)
    state = tr.init()
    after, metrics = run(tr.step, state, data(3))
    assert seen["dtype"] == HALF[precision]
    assert [leaf.dtype for leaf in ps.tree.leaves(after)] == [leaf.dtype for leaf in ps.tree.leaves(state)]
    assert metrics["loss/total"].dtype == torch.float32
    assert after.params["first.weight"].dtype == torch.float32


@pytest.mark.parametrize("precision", sorted(HALF))
def test_training_in_half_precision_follows_that_in_float32(precision):
    whole = training(seeded(Plain).float(), ps.adamw(1e-2), loss=loss_in_float32)
    tr = half(precision, model=seeded(Plain), loss=loss_in_float32)
    one, _ = run(whole.step, whole.init(), data(5))
    other, _ = run(tr.step, tr.init(), data(5))
    for path, leaf in one.params.items():
        # five updates of at most 1e-2, whose signs agree almost everywhere
        assert (leaf - other.params[path]).abs().mean() < 5e-3, path


def test_autocast_does_not_leak_out_of_a_step():
    tr = half("bf16", loss=loss_in_float32)
    tr.step(tr.init(), data(1)[0])
    assert not torch.is_autocast_enabled("cpu")


def test_a_half_precision_step_is_repeatable_and_the_same_when_traced():
    tr = half("bf16", ps.clip_by_global_norm(1.0), loss=loss_in_float32, model=seeded(Plain))
    state, batch = tr.init(), data(1)[0]
    expected = tr.step(state, batch)
    assert_trees_equal(tr.step(state, batch), expected)
    assert_trees_equal(ps.compile(tr.step, backend="eager")(state, batch), expected)


def test_evaluating_between_steps_changes_no_later_step():
    tr, batches_ = half("bf16", loss=loss_in_float32), data(2)
    state, _ = tr.step(tr.init(), batches_[0])
    expected = tr.step(state, batches_[1])
    with torch.no_grad():
        tr.evaluate(state, batches_[0])
    assert_trees_equal(tr.step(state, batches_[1]), expected)


class Exploding(nn.Module):
    """The gradient of the weight is the batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.weight * x


def scaled(initial_scale=2.0**16, **options):
    optimizer = ps.chain(ps.dynamic_loss_scale(initial_scale, **options), ps.clip_by_global_norm(1.0), ps.sgd(1.0))
    loss = lambda predictions, batch: predictions["y"].sum()  # noqa: E731
    return training(Exploding(), optimizer, loss=loss, hooks=(ps.hooks.ema(0.5),))


def scale_of(state):
    return state.opt_state["dynamic_loss_scale"].scale.item()


def test_a_gradient_that_overflows_is_rejected_halves_the_scale_and_moves_nothing_else():
    tr = scaled()
    state = tr.init()
    after, metrics = tr.step(state, {"x": torch.tensor([1e36, 1.0])})
    assert (scale_of(after), metrics["update/applied"].item()) == (2.0**15, False)
    assert_trees_equal((after.params, after.hook_state), (state.params, state.hook_state))
    assert (after.counters.batch_count.item(), after.counters.step_count.item()) == (1, 0)


def test_the_scale_grows_after_so_many_good_batches():
    tr = scaled(4.0, growth_interval=2)
    state, seen = tr.init(), []
    for _ in range(4):
        state, _ = tr.step(state, {"x": torch.tensor([3.0, 4.0])})
        seen.append(scale_of(state))
    assert seen == [4.0, 8.0, 8.0, 16.0]


@pytest.mark.parametrize("initial_scale", [1.0, 2.0**10, 2.0**20])
def test_the_scale_changes_no_update(initial_scale):
    tr = scaled(initial_scale)
    after, metrics = tr.step(tr.init(), {"x": torch.tensor([3.0, 4.0])})
    # clipped to (0.6, 0.8) after unscaling
    assert (1.0 - after.params["weight"]).tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert metrics["update/grad_norm"].item() == pytest.approx(5.0, rel=1e-6)
    assert metrics["loss/total"].item() == 7.0


def test_a_window_sums_unscaled_gradients_though_the_scale_changes_within_it():
    optimizer = ps.chain(ps.dynamic_loss_scale(1024.0, growth_interval=1), ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.sgd(1.0))
    tr = training(Exploding(), optimizer, loss=lambda predictions, batch: predictions["y"].sum())
    state, metrics = run(tr.step, tr.init(), [{"x": torch.tensor([6.0, 0.0])}, {"x": torch.tensor([0.0, 8.0])}])
    assert (1.0 - state.params["weight"]).tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert (metrics["update/grad_norm"].item(), scale_of(state)) == (5.0, 4096.0)


def test_the_scale_is_saved_and_resumed(tmp_path):
    tr = scaled()
    state, _ = tr.step(tr.init(), {"x": torch.tensor([1e36, 1.0])})
    ps.save(tmp_path / "checkpoint", state)
    assert_trees_equal(ps.load(tmp_path / "checkpoint", like=tr.init()), state)


def test_a_leaf_without_a_gradient_is_fine_under_loss_scaling():
    class Idle(Exploding):
        def __init__(self):
            super().__init__()
            self.idle = nn.Parameter(torch.ones(2))

    optimizer = ps.chain(ps.dynamic_loss_scale(), ps.adamw(0.1))
    tr = training(Idle(), optimizer, loss=lambda predictions, batch: predictions["y"].sum())
    state = tr.init()
    with pytest.warns(UserWarning, match="does not depend on idle"):
        after, metrics = tr.step(state, {"x": torch.ones(2)})
    assert metrics["update/applied"].item()
    assert_trees_equal(after.params["idle"], state.params["idle"])


def test_weights_in_bfloat16_learn_through_wide_updates_only_if_these_are_large_enough_or_kept_wide():
    tr = training(seeded(Plain).bfloat16(), ps.adamw(1e-2), loss=loss_in_float32)
    state = tr.init()
    after, _ = run(tr.step, state, [ps.tree.cast(batch, torch.bfloat16) for batch in batches(3)])
    assert after.params["out.weight"].dtype == torch.bfloat16
    assert torch.any(after.params["out.weight"] != state.params["out.weight"])
    moments = [leaf for path, leaf in ps.tree.items(after.opt_state) if path.endswith("out.weight")]
    assert {leaf.dtype for leaf in moments} == {torch.float32}


def test_the_norm_of_three_gradients_of_1e20_is_exact_and_they_are_clipped():
    optimizer = ps.chain(ps.clip_by_global_norm(1.0), ps.sgd(1.0))
    step = ps.make_step(lambda w, x: (w * x).sum(), optimizer)
    after, metrics = step(ps.init_state(torch.zeros(3), optimizer), torch.full((3,), 1e20))
    assert metrics["update/grad_norm"].item() == pytest.approx(1.7320508e20, rel=1e-6)
    assert (-after.params).tolist() == pytest.approx([0.57735] * 3, abs=1e-5)
