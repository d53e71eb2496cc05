"""The step from a plain loss function: what it computes, what it reports, what it leaves alone."""

import pytest
import torch

import purestep as ps
from purestep.core.rng import ROUNDING
from purestep.errors import TransformError
from purestep.testing import assert_trees_close, assert_trees_equal

X = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)


def squares(w, x):
    return (w * x).square().mean()


def start(optimizer, params=ONE, loss=squares, hooks=(), **options):
    return ps.make_step(loss, optimizer, hooks, **options), ps.init_state(params, optimizer, hooks)


def test_a_step_of_gradient_descent_is_the_one_by_hand():
    step, state = start(ps.sgd(0.1))
    after, metrics = step(state, X)
    # loss 30 / 4, slope 2 * 30 / 4 = 15
    assert (metrics["loss/total"].item(), metrics["update/grad_norm"].item(), after.params.item()) == (7.5, 15.0, -0.5)
    assert metrics["update/applied"].item()


def test_a_batch_of_four_weighs_every_sample_alike_however_it_comes():
    expected = torch.tensor(-0.5, dtype=torch.float64)
    as_sums = lambda w, x: ps.Sums((w * x).square().sum(), torch.full_like(w, len(x)))  # noqa: E731
    unequal = (X[:3], X[3:])
    cut_here, state = start(ps.sgd(0.1), loss=lambda w, x: as_sums(w, x[0]), microbatches=2)
    after, metrics = cut_here(state, tuple((part,) for part in unequal))
    # sums of four numbers in another order
    assert (metrics["loss/total"].item(), metrics["update/grad_norm"].item()) == pytest.approx((7.5, 15.0), abs=1e-12)
    assert after.params.item() == pytest.approx(expected.item(), abs=1e-12)
    window, state = start(ps.chain(ps.accumulate(2), ps.clip_by_global_norm(1e9), ps.sgd(0.1)), loss=as_sums)
    for part in unequal:
        state, metrics = window(state, part)
    assert (metrics["update/loss"].item(), metrics["update/grad_norm"].item()) == pytest.approx((7.5, 15.0), abs=1e-12)
    assert state.params.item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_equal_cuts_give_the_mean_of_their_losses(parts):
    step, state = start(ps.sgd(0.1), microbatches=parts)
    after, metrics = step(state, X)
    assert metrics["loss/total"].item() == pytest.approx(7.5, abs=1e-13)
    assert after.params.item() == pytest.approx(-0.5, abs=1e-13)


def test_unequal_cuts_of_a_mean_are_refused():
    step, state = start(ps.sgd(0.1), microbatches=3)
    with pytest.raises(ValueError, match=r"microbatches=3: parts of unequal sizes"):
        step(state, X)


def test_more_parts_than_samples_are_refused():
    step, state = start(ps.sgd(0.1), microbatches=5)
    with pytest.raises(ValueError, match=r"a field of shape \(4,\) cannot be cut"):
        step(state, X)
    with pytest.raises(ValueError, match="microbatches must be a whole number of at least 1"):
        ps.make_step(squares, ps.sgd(0.1), microbatches=0)


@pytest.mark.parametrize(
    "params",
    [ONE, (ONE, ONE), [ONE, {"deep": ONE}], {"a": ONE, "b": (ONE,)}],
    ids=["tensor", "tuple", "list", "dict"],
)
def test_parameters_may_be_any_tree(params):
    loss = lambda params, x: sum((leaf * x).square().mean() for leaf in ps.tree.leaves(params))  # noqa: E731
    step, state = start(ps.adamw(0.1), params, loss)
    after, _ = step(state, X)
    assert ps.tree.structure(after.params) == ps.tree.structure(params)
    assert all(leaf < 1.0 for leaf in ps.tree.leaves(after.params))


def test_tensors_that_the_loss_function_returns_beside_are_metrics():
    step, state = start(ps.sgd(0.1), loss=lambda w, x: (squares(w, x), {"twice": 2 * w, "text": "no tensor"}))
    _, metrics = step(state, X)
    assert metrics["twice"].item() == 2.0
    assert "text" not in metrics
    assert not any(value.requires_grad for value in metrics.values())


def test_the_state_shares_no_memory_with_the_parameters_given():
    params = {"w": ONE.clone()}
    _, state = start(ps.sgd(0.1), params)
    assert state.params["w"].data_ptr() != params["w"].data_ptr()


def test_whole_numbers_cannot_be_parameters():
    with pytest.raises(TypeError, match=r"params\.n has dtype torch\.int64, which has no gradient"):
        ps.init_state({"n": torch.tensor(1)}, ps.sgd(0.1))


@pytest.mark.parametrize("give", [lambda module: module, lambda module: module.named_parameters()], ids=["module", "generator"])
def test_a_module_in_the_place_of_parameters_is_told_how_to_give_them(give):
    module = torch.nn.Linear(1, 1)
    with pytest.raises(
        TypeError, match=r"^params is a (Linear|generator); give .* dict\(module\.named_parameters\(\)\), or use ps\.Training"
    ):
        ps.init_state(give(module), ps.sgd(0.1))
    with pytest.raises(TypeError, match=r"^params\.w is a float; parameters are tensors, so wrap it: torch\.tensor"):
        ps.init_state({"w": 1.0}, ps.sgd(0.1))


def test_a_chain_that_needs_what_no_step_passes_is_refused_when_the_step_is_built():
    passing = lambda updates, state, params=None, **extra: (updates, state)  # noqa: E731
    needy = ps.GradientTransform(lambda params: (), passing, "needy", frozenset({"hessian"}))
    with pytest.raises(TransformError, match="needs hessian: pass hessian="):
        ps.make_step(squares, ps.chain(needy))


@pytest.mark.parametrize("wrap", [lambda part: part, lambda part: ps.chain(ps.chain(part), ps.sgd(0.1))])
def test_a_transform_without_extra_is_refused_when_the_step_is_built(wrap):
    mine = ps.GradientTransform(lambda params: (), lambda updates, state, params=None: (updates, state), "mine")
    with pytest.raises(TransformError, match=r"mine: update must accept \*\*extra.*write update\(updates, state, params=None, \*\*extra\)"):
        ps.make_step(squares, wrap(mine))


def test_the_chain_gets_loss_denominator_counters_and_a_key_that_changes_with_the_batch():
    seen = []

    def update(updates, state, params=None, **extra):
        seen.append(extra)
        return updates, state

    spy = ps.GradientTransform(lambda params: (), update, "spy", frozenset({"key", "value", "denominator", "counters"}))
    step, state = start(ps.chain(spy), loss=lambda w, x: ps.Sums((w * x).square().sum(), torch.full_like(w, 4.0)))
    for _ in range(2):
        state, _ = step(state, X)
    assert seen[0]["value"].item() == 7.5
    assert [extra["denominator"].item() for extra in seen] == [4.0, 4.0]
    assert [extra["counters"].batch_count.item() for extra in seen] == [0, 1]
    keys = [extra["key"].item() for extra in seen]
    assert keys == [ps.fold_in(state.seed, count, purpose=ROUNDING).item() for count in (0, 1)]


def test_a_leaf_that_the_loss_does_not_reach_is_put_back_with_its_state_and_reported_once():
    params = {"used": ONE, "idle": 2 * ONE}
    step, state = start(ps.adamw(0.1, weight_decay=0.5), params, lambda p, x: squares(p["used"], x))
    with pytest.warns(UserWarning, match="the loss does not depend on idle"):
        after, metrics = step(state, X)
    again, _ = step(after, X)  # a second warning would be an error
    moved = dict(ps.tree.items(again.opt_state))
    kept = {path: leaf for path, leaf in ps.tree.items(state.opt_state) if path.endswith("idle")}
    assert_trees_equal(again.params["idle"], state.params["idle"])
    assert_trees_equal({path: moved[path] for path in kept}, kept)
    assert metrics["update/grad_norm"].item() == 15.0
    assert again.params["used"] < after.params["used"] < 1.0


def test_a_leaf_reached_only_in_some_batches_keeps_its_momentum_when_it_is_not():
    params = {"a": ONE, "b": ONE}
    loss = lambda p, x: squares(p["a"], x["x"]) + (squares(p["b"], x["x"]) if "both" in x else 0.0)  # noqa: E731
    step, state = start(ps.sgd(0.01, momentum=0.9), params, loss)
    both, _ = step(state, {"x": X, "both": ONE})
    with pytest.warns(UserWarning, match="does not depend on b"):
        one, _ = step(both, {"x": X})
    assert_trees_equal(one.params["b"], both.params["b"])


def reached_at_will(p, x):
    return squares(p["a"], x["x"]) + (squares(p["b"], x["x"]) if "both" in x else 0.0)


@pytest.mark.filterwarnings("ignore:the loss does not depend on")
@pytest.mark.parametrize("order", [("both", "one"), ("one", "both")])
def test_a_leaf_that_any_batch_of_a_window_reaches_gets_the_gradient_of_the_window(order):
    params = {"a": ONE, "b": ONE}
    step, state = start(ps.chain(ps.accumulate(2), ps.sgd(0.1, momentum=0.9)), params, reached_at_will)
    data = {"both": {"x": X, "both": ONE}, "one": {"x": X}}
    for _ in range(2):  # nothing is left over for the next window
        before = state.params
        for name in order:
            state, _ = step.at(state)(state, data[name])
        assert not any(leaf.any() for leaf in ps.tree.leaves(state.opt_state["accumulate"].total))
    # the mean of one gradient 15 w and of none, twice, with momentum
    first = 1.0 - 0.1 * 7.5
    second = first - 0.1 * (0.9 * 7.5 + 7.5 * first)
    assert state.params["b"].item() == pytest.approx(second, abs=1e-12)
    assert before["b"].item() == pytest.approx(first, abs=1e-12)


@pytest.mark.filterwarnings("ignore:the loss does not depend on")
def test_hooks_see_no_update_of_a_leaf_that_is_left_alone():
    seen = []

    def look(state, ctx):
        seen.append(ctx.updates)
        return state, ctx

    hook = ps.Hook("look", frozenset({ps.Stage.AFTER_OPTIMIZER_STEP}), lambda state: (), look)
    step, state = start(ps.adamw(0.1, weight_decay=0.5), {"a": ONE, "b": ONE}, reached_at_will, hooks=[hook])
    step(state, {"x": X})
    assert seen[0]["a"] != 0
    assert seen[0]["b"] == 0


def test_a_loss_that_depends_on_nothing_says_so():
    step, state = start(ps.sgd(0.1), loss=lambda w, x: x.sum())
    with pytest.raises(ValueError, match="depends on no trainable parameter"):
        step(state, X)


def test_the_gradient_norm_reported_is_that_before_clipping_and_of_the_whole_window():
    sums = lambda w, x: (w * x).sum()  # noqa: E731
    params = torch.ones(2, dtype=torch.float64)
    step, state = start(ps.chain(ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.sgd(1.0)), params, sums)
    state, _ = step(state, torch.tensor([6.0, 0.0], dtype=torch.float64))
    after, metrics = step(state, torch.tensor([0.0, 8.0], dtype=torch.float64))
    assert metrics["update/grad_norm"].item() == pytest.approx(5.0, abs=1e-12)
    assert (1.0 - after.params).tolist() == pytest.approx([0.6, 0.8], abs=1e-12)


@pytest.mark.parametrize("before", [(), (ps.skip_nonfinite(),), (ps.dynamic_loss_scale(8.0),)], ids=["alone", "gate", "scaled"])
@pytest.mark.parametrize("after", [(), (ps.dynamic_loss_scale(16.0),)], ids=["plain", "scaled-after"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gradient_norm_of_a_window_is_reported_where_nothing_clips(before, after, dtype):
    params = torch.ones(2, dtype=dtype)
    optimizer = ps.chain(*before, ps.accumulate(2), *after, ps.sgd(1.0))
    step, state = start(optimizer, params, lambda w, x: (w * x).sum())
    state, first = step(state, torch.tensor([6.0, 0.0], dtype=dtype))
    _, second = step.at(state)(state, torch.tensor([0.0, 8.0], dtype=dtype))
    assert (first["update/grad_norm"].item(), second["update/grad_norm"].item()) == pytest.approx((6.0, 5.0), abs=1e-12)


GATED_WINDOWS = {
    "nonfinite": lambda: ps.chain(ps.skip_nonfinite(), ps.accumulate(3), ps.adamw(0.1)),
    "scaled": lambda: ps.chain(ps.dynamic_loss_scale(8.0, growth_interval=2), ps.accumulate(3), ps.clip_by_global_norm(1.0), ps.adam(0.1)),
}


@pytest.mark.parametrize("name", sorted(GATED_WINDOWS))
def test_the_form_for_an_open_window_behind_a_gate_gives_the_bits_of_the_full_step(name):
    step, state = start(GATED_WINDOWS[name]())
    forms = []
    for value in (1.0, float("nan"), 2.0, 3.0, float("inf"), 4.0, 5.0, 6.0):
        form = step.at(state)
        forms.append(form is step)
        expected, found = step(state, value * X), form(state, value * X)
        assert_trees_equal(found, expected)
        state = expected[0]
    assert True in forms and False in forms


def test_a_scaled_loss_is_unscaled_before_it_is_clipped_and_reported():
    sums = lambda w, x: (w * x).sum()  # noqa: E731
    params = torch.ones(2, dtype=torch.float64)
    optimizer = ps.chain(ps.dynamic_loss_scale(1024.0), ps.clip_by_global_norm(1.0), ps.sgd(1.0))
    step, state = start(optimizer, params, sums)
    after, metrics = step(state, torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert (1.0 - after.params).tolist() == pytest.approx([0.6, 0.8], abs=1e-12)
    assert (metrics["update/grad_norm"].item(), metrics["loss/total"].item()) == pytest.approx((5.0, 7.0), abs=1e-12)


def test_weight_decay_clipping_and_counts_happen_once_per_update_not_per_micro_batch():
    batches = [x.repeat(2) for x in X]
    whole, state_whole = start(ps.adamw(0.1, weight_decay=0.3))
    window, state_window = start(ps.chain(ps.accumulate(4), ps.adamw(0.1, weight_decay=0.3)))
    for _ in range(3):
        state_whole, _ = whole(state_whole, torch.cat(batches))
        for batch in batches:
            state_window, _ = window(state_window, batch)
    # the mean of four numbers in another order
    assert_trees_close(state_window.params, state_whole.params, rtol=1e-13, atol=0.0)
    assert state_window.counters.step_count.item() == 3


def test_a_window_waits_as_fast_as_it_can_with_the_same_bits():
    step, state = start(ps.chain(ps.accumulate(2), ps.adamw(0.1)), hooks=(ps.hooks.ema(0.9), ps.hooks.loss_statistics()))
    for _ in range(4):
        expected = step(state, X)
        assert_trees_equal(step.at(state)(state, X), expected)
        state, _ = expected
    assert step.at(state) is not step
    assert step.at(step(state, X)[0]) is step


def test_bfloat16_and_complex_parameters_are_trained():
    for dtype in (torch.bfloat16, torch.complex64):
        params = torch.ones(3, dtype=dtype)
        step, state = start(ps.sgd(0.1), params, lambda w, x: (w.abs().float() * 2).square().sum())
        after, metrics = step(state, X)
        assert (after.params.dtype, bool((after.params.abs() < 1).all())) == (dtype, True)
        assert metrics["loss/total"].dtype == torch.float32
