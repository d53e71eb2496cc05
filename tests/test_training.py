"""Training of modules: purity, forms, precision of the gradient, and what a run must not change."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.errors import LossError, ModuleError, PatternError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import (
    WIDTH,
    Net,
    Plain,
    batches,
    forward,
    mean_squared_error,
    member,
    poisoned,
    potential_training,
    run,
    seeded,
    stacked,
    training,
)


def everything(**changes):
    """A training with all that has memory: gates, a window, clipping, moments, an average."""
    optimizer = ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.clip_by_global_norm(0.5), ps.adamw(1e-2, weight_decay=0.1))
    return training(optimizer=optimizer, hooks=(ps.hooks.ema(0.9), ps.hooks.loss_statistics()), **changes)


# --- purity ---------------------------------------------------------------------------------------------------------


def test_init_step_and_evaluate_change_nothing_that_they_are_given(untouched_globals):
    tr, data = everything(), batches(4)
    state = tr.init(seed=3)
    for batch in data:
        before = ps.tree.clone((state, batch))
        new, _ = tr.step(state, batch)
        tr.evaluate(state, batch)
        assert_trees_equal((state, batch), before)
        state = new


def test_the_same_call_twice_gives_the_same_bits():
    tr, data = everything(), batches(4)
    assert_trees_equal(tr.init(seed=3), tr.init(seed=3))
    state = tr.init(seed=3)
    for batch in data:
        first, second = tr.step(state, batch), tr.step(state, batch)
        assert_trees_equal(first, second)
        assert_trees_equal(tr.evaluate(state, batch), tr.evaluate(state, batch))
        state = first[0]


def test_no_leaf_of_a_new_state_shares_memory_with_an_old_one_or_with_another():
    tr = everything()
    state, batch = tr.init(), batches(1)[0]
    new, metrics = tr.step(state, batch)
    old = {leaf.data_ptr(): leaf for leaf in ps.tree.leaves((state, batch))}
    fresh = [leaf for leaf in ps.tree.leaves((new, metrics)) if old.get(leaf.data_ptr()) is not leaf]
    assert not [leaf for leaf in fresh if leaf.data_ptr() in old]
    stored = [leaf.untyped_storage().data_ptr() for leaf in ps.tree.leaves(new)]
    assert len(set(stored)) == len(stored)


def test_structure_dtypes_and_devices_stay_the_same():
    tr = everything()
    state = tr.init()
    after, _ = run(tr.step, state, batches(5))
    assert ps.tree.structure(after) == ps.tree.structure(state)
    kinds = lambda state: [(leaf.dtype, leaf.device, leaf.shape) for leaf in ps.tree.leaves(state)]  # noqa: E731
    assert kinds(after) == kinds(state)


def test_a_step_outlives_what_happens_to_the_module():
    model = seeded(Net)
    tr = training(model)
    state, batch = tr.init(), batches(1)[0]
    before = tr.step(state, batch)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    model.eval()
    assert_trees_equal(tr.step(state, batch), before)


def test_another_seed_draws_other_masks_and_another_batch_others_again():
    tr, batch = training(), batches(1)[0]
    losses = [tr.step(tr.init(seed), batch)[1]["loss/total"].item() for seed in (0, 1)]
    again = tr.step(tr.step(tr.init(), batch)[0], batch)[1]["loss/total"].item()
    assert len({*losses, again}) == 3


# --- forms ----------------------------------------------------------------------------------------------------------


def test_a_step_compiled_whole_by_dynamo_gives_the_eager_numbers():
    torch._dynamo.reset()
    tr, data = everything(), batches(3)
    compiled, state = torch.compile(tr.step, fullgraph=True, backend="aot_eager"), tr.init(seed=1)
    for batch in data:
        # fused otherwise: rounding only
        assert_trees_close(compiled(state, batch), tr.step(state, batch), rtol=1e-10, atol=1e-10)
        state, _ = tr.step(state, batch)


def test_a_step_mapped_over_seeds_is_each_member_alone():
    tr, batch = everything(), batches(1)[0]
    states = [run(tr.step, tr.init(seed), batches(1, seed=9))[0] for seed in (0, 1, 2)]
    together = torch.func.vmap(tr.step, in_dims=(0, None))(stacked(states), batch)
    for number, state in enumerate(states):
        # products of stacked matrices are summed in another order
        assert_trees_close(member(together, number), tr.step(state, batch), rtol=1e-10, atol=1e-10)


def test_a_sweep_over_learning_rates_is_one_mapped_step():
    tr, data = training(seeded(Plain), ps.sgd(0.1)), batches(2)
    rates = torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    first = tr.init()
    states = [dataclasses.replace(first, opt_state=ps.set_hyperparams(first.opt_state, learning_rate=rate)) for rate in rates]
    together = torch.func.vmap(tr.step, in_dims=(0, None))(stacked(states), data[0])[0]
    moved = together.params["out.weight"] - tr.init().params["out.weight"]
    assert torch.equal(moved[0], torch.zeros_like(moved[0]))
    # twice the rate, twice the step
    assert torch.allclose(moved[2], 2 * moved[1], rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_a_step_compiled_by_inductor_gives_the_eager_numbers():
    torch._dynamo.reset()
    tr, data = everything(), batches(2)
    compiled, state = torch.compile(tr.step, fullgraph=True), tr.init(seed=1)
    for batch in data:
        # kernels sum in another order
        assert_trees_close(compiled(state, batch), tr.step(state, batch), rtol=1e-10, atol=1e-10)
        state, _ = tr.step(state, batch)


def test_both_gradient_engines_train_alike():
    by_engine = [everything(grad_engine=engine) for engine in ("autograd", "func")]
    one, other = (run(tr.step, tr.init(), batches(4)) for tr in by_engine)
    # the same operations; sums of shared leaves in another order
    assert_trees_close(other, one, rtol=1e-12, atol=1e-12)


def test_unrolled_steps_can_be_differentiated_with_respect_to_the_learning_rate():
    tr, data = training(seeded(Plain), ps.sgd(0.1, momentum=0.9), grad_engine="func"), batches(3)

    def distance(rate):
        state = tr.init()
        state = dataclasses.replace(state, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=rate))
        return run(tr.step, state, data)[0].params["out.weight"].square().sum()

    rate, step = torch.tensor(0.1, dtype=torch.float64), 1e-5
    slope = (distance(rate + step) - distance(rate - step)) / (2 * step)
    # the error of central differences is step^2 = 1e-10 of the third derivative, some thousand times the first
    assert torch.func.grad(distance)(rate).item() == pytest.approx(slope.item(), rel=1e-6)


# --- against plain torch --------------------------------------------------------------------------------------------


def test_training_is_that_of_a_plain_torch_loop():
    model, data = seeded(Net), batches(5)
    model.dropout.p = 0.0
    tr = training(model, ps.adamw(1e-2, weight_decay=0.1))
    state, _ = run(tr.step, tr.init(), data)
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    for batch in data:
        optimizer.zero_grad()
        (theirs(batch["x"]) - batch["y"]).square().mean().backward()
        optimizer.step()
    # formulas of AdamW are arranged otherwise
    assert_trees_close(state.params, {name: p.detach() for name, p in theirs.named_parameters()}, rtol=1e-10, atol=1e-12)
    assert_trees_close(state.buffers, dict(theirs.named_buffers()), rtol=1e-10, atol=1e-12)


def test_the_gradient_of_a_tied_leaf_is_that_of_autograd():
    model, batch = seeded(Net), batches(1)[0]
    model.dropout.p = 0.0
    tr = training(model, ps.sgd(1.0))
    state = tr.init()
    after, _ = tr.step(state, batch)
    (model(batch["x"]) - batch["y"]).square().mean().backward()
    for name, parameter in model.named_parameters():
        # the difference of two numbers near 1 is rounded to 1e-16
        assert torch.allclose(state.params[name] - after.params[name], parameter.grad, rtol=1e-12, atol=1e-14), name
    assert sorted(name for name, _ in state.aliases) == ["decoder.weight", "second.bias", "second.weight"]


# --- batches that are not finite ------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [0, 1], ids=["closed window", "open window"])
def test_a_batch_with_nan_changes_nothing_but_batch_and_skip_counters(opened):
    tr = everything()
    state, _ = run(tr.step, tr.init(), batches(2 + opened))
    after, metrics = tr.step(state, poisoned(batches(1)[0]))
    changed = {path for (path, new), old in zip(ps.tree.items(after), ps.tree.leaves(state), strict=True) if not torch.equal(new, old)}
    assert changed <= {
        "counters.batch_count",
        "counters.epoch_step_count",
        *(f"opt_state.skip_nonfinite.{field}" for field in ("consecutive", "by_loss", "by_updates", "leaf", "halt")),
    }
    assert (metrics["skip_nonfinite/by_loss"].item(), metrics["update/applied"].item()) == (1, False)
    assert metrics["loss/total"].isnan()


def test_training_after_a_bad_batch_is_that_without_it():
    optimizer = ps.chain(ps.skip_nonfinite(), ps.adamw(1e-2))
    data = batches(4)
    tr = training(seeded(Plain), optimizer)
    with_bad, _ = run(tr.step, tr.init(), [*data[:2], poisoned(data[2]), *data[2:]])
    without, _ = run(tr.step, tr.init(), data)
    assert_trees_equal(with_bad.params, without.params)


# --- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate_is_the_module_in_eval_mode():
    model, data = seeded(Net), batches(3)
    tr = training(model)
    state, _ = run(tr.step, tr.init(), data[:2])
    predictions, sums = tr.evaluate(state, data[2])
    theirs = copy.deepcopy(model).eval()
    theirs.load_state_dict({**state.params, **state.buffers}, strict=False)
    expected = theirs(data[2]["x"])
    assert torch.equal(predictions["y"], expected)
    assert sums["MSELoss"].numerator.item() == pytest.approx((expected - data[2]["y"]).square().sum().item(), rel=1e-14)
    assert sums["MSELoss"].denominator.item() == 8 * WIDTH
    assert not predictions["y"].requires_grad


def test_evaluate_takes_other_parameters_and_buffers():
    tr, data = training(), batches(2)
    first = tr.init()
    state, _ = run(tr.step, first, data)
    assert_trees_equal(tr.evaluate(state, data[0], first.params, first.buffers), tr.evaluate(first, data[0]))


def test_evaluate_works_and_keeps_no_graph_where_gradients_are_switched_off():
    tr = potential_training("schnet")
    from tests.examples_of_models import molecules

    state, batch = tr.init(), molecules()
    expected = tr.evaluate(state, batch)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            predictions, _ = tr.evaluate(state, batch)
        assert torch.equal(predictions["forces"], expected[0]["forces"])
    assert not any(leaf.requires_grad for leaf in ps.tree.leaves((expected, state)))


def test_sums_of_evaluate_merge_exactly_over_batches_of_any_size():
    tr = training(seeded(Plain))
    state, batch = tr.init(), batches(1, size=7)[0]
    whole = tr.evaluate(state, batch)[1]["MSELoss"]
    parts = [tr.evaluate(state, {key: value[i:j] for key, value in batch.items()})[1]["MSELoss"] for i, j in ((0, 3), (3, 4), (4, 7))]
    merged = sum(part.numerator for part in parts) / sum(part.denominator for part in parts)
    assert merged.item() == pytest.approx((whole.numerator / whole.denominator).item(), rel=1e-12)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "int8"}, ValueError, "precision: unknown value 'int8'"),
        ({"precision": "fp16"}, ValueError, r"needs ps\.dynamic_loss_scale"),
        ({"grad_engine": "jax"}, ValueError, "grad_engine: unknown value 'jax'"),
        ({"microbatches": 0}, ValueError, "microbatches must be a whole number of at least 1"),
        ({"trainable": "encodr.*"}, PatternError, "did you mean 'encoder"),
        ({"optimizer": ps.adamw}, TypeError, "expected a gradient transform .* got the function adamw; call it"),
        ({"loss": 3}, LossError, "expected a loss term, a sum of terms or a function"),
    ],
)
def test_options_that_cannot_work_are_refused_when_the_training_is_put_together(options, error, message):
    with pytest.raises(error, match=message):
        training(**options)


def test_nothing_trainable_is_refused():
    model = seeded(Plain).requires_grad_(False)
    with pytest.raises(PatternError, match="no parameter is left to train"):
        training(model)


def test_parameters_in_a_plain_list_are_refused():
    model = seeded(Plain)
    model.extra = [nn.Parameter(torch.ones(1))]
    with pytest.raises(ModuleError, match="extra holds a parameter that the module has not registered"):
        training(model)


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, {"x": torch.ones(2, WIDTH, dtype=torch.float64)}, r"no field of the batch 'y'; there are \['x'\]"),
        ({"forward": lambda model, batch: {"z": batch["x"]}}, None, r"no prediction 'y'; there are \['z'\]"),
    ],
)
def test_what_the_loss_cannot_find_is_named_with_what_is_there(options, batch, message):
    tr = training(seeded(Plain), **options)
    with pytest.raises(LossError, match=message):
        tr.step(tr.init(), batch or batches(1)[0])


def test_several_models_without_a_forward_are_told_that_they_need_one():
    models = {"a": seeded(Plain), "b": seeded(Plain)}
    tr = ps.Training(models, loss=mean_squared_error(), optimizer=ps.sgd(0.1))
    with pytest.raises(TypeError, match=r"several models \(a, b\) needs forward="):
        tr.step(tr.init(), batches(1)[0])


def test_a_loss_may_be_a_function_of_predictions_and_batch():
    plain = training(seeded(Plain), ps.sgd(0.1))
    tr = training(seeded(Plain), ps.sgd(0.1), loss=lambda predictions, batch: (predictions["y"] - batch["y"]).square().mean())
    batch = batches(1)[0]
    assert_trees_close(tr.step(tr.init(), batch)[0].params, plain.step(plain.init(), batch)[0].params, rtol=1e-14, atol=0.0)


def test_targets_may_come_from_predictions():
    tr = training(seeded(Plain), targets=lambda loss, predictions, batch, *, target_keys: {"y": predictions["y"].detach() + 1.0})
    assert tr.step(tr.init(), batches(1)[0])[1]["loss/total"].item() == pytest.approx(1.0, abs=1e-14)


def test_by_default_the_module_is_called_with_the_batch():
    class TakesBatch(Plain):
        def forward(self, batch):
            return {"y": super().forward(batch["x"])}

    tr, plain, batch = training(seeded(TakesBatch), forward=None), training(seeded(Plain), forward=forward), batches(1)[0]
    assert_trees_equal(tr.step(tr.init(), batch)[0].params, plain.step(plain.init(), batch)[0].params)


def test_an_optimizer_that_is_no_chain_has_the_names_it_has_among_ranks():
    bare, chained = training(optimizer=ps.prodigy()), training(optimizer=ps.chain(ps.prodigy()))
    assert ps.tree.paths(bare.init()) == ps.tree.paths(chained.init())
    assert "opt_state.prodigy.count" in ps.tree.paths(bare.init())
