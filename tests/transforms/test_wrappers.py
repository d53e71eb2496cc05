"""Transforms around other transforms: conditions, injected hyperparameters, layouts, slow weights, measurements, names."""

import pytest
import torch

from purestep import schedules
from purestep.core import tree
from purestep.core.transform import GradientTransform, apply_updates, chain, collect_metrics, set_hyperparams
from purestep.optimizers import adam, adamw, sgd
from purestep.transforms import (
    accumulate,
    add_decayed_weights,
    add_mean_variance_to_opt,
    apply_every,
    at_least_2d,
    average_per_element_updates,
    conditionally_mask,
    conditionally_transform,
    flatten,
    get_unbiased_mean_and_variance_ema,
    incremental_update,
    inject_hyperparams,
    lookahead,
    measure_with_ema,
    monitor,
    named,
    named_chain,
    per_example_global_norm_clip,
    per_example_layer_norm_clip,
    periodic_update,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
    selective_transform,
    skip_nonfinite,
    snapshot,
    split_real_and_imaginary,
    trace,
)


def w(*values):
    return {"w": torch.tensor(values, dtype=torch.float64)}


def outputs(transform, series, params=None):
    params = w(0.0) if params is None else params
    state, out = transform.init(params), []
    for value in series:
        updates, state = transform.update(w(value), state, params)
        out.append(float(updates["w"]))
    return out, state


def test_a_condition_chooses_between_the_transform_and_the_raw_updates():
    out, state = outputs(conditionally_transform(trace(0.5), lambda step: step % 2 == 0), [1.0] * 4)
    assert out == [1.0, 1.0, 1.5, 1.0]
    assert int(state.step) == 4


def test_a_condition_chooses_between_the_transform_and_zeros():
    out, _ = outputs(conditionally_mask(trace(0.5), lambda step: step % 2 == 0), [1.0] * 4)
    assert out == [1.0, 0.0, 1.5, 0.0]


def test_a_condition_sees_extra_arguments_when_asked():
    transform = conditionally_mask(scale(2.0), lambda step, value, **extra: value > 1, forward_extra_args=True)
    updates = [transform.update(w(1.0), transform.init(w(0.0)), w(0.0), value=torch.tensor(v))[0] for v in (0.5, 2.0)]
    assert [float(u["w"]) for u in updates] == [0.0, 2.0]


def test_a_gate_inside_a_condition_speaks_only_when_it_is_asked():
    transform, params = conditionally_transform(skip_nonfinite(), lambda step: step == 0), w(0.0)
    first, state = transform.update(w(float("nan")), transform.init(params), params)
    second, _ = transform.update(w(float("nan")), state, params)
    assert (bool(first.apply), bool(first.reject)) == (False, True)
    assert (bool(second.apply), bool(second.reject)) == (True, False)


def test_an_injected_number_can_be_set_and_acts():
    make = inject_hyperparams(adam)
    transform, params = make(learning_rate=0.1, b1=0.9), w(1.0)
    state = set_hyperparams(transform.init(params), b1=0.0)
    for value in (1.0, -3.0):
        updates, state = transform.update(w(value), state, params)
    expected = outputs(adam(0.1, b1=0.0), [1.0, -3.0])[0][-1]
    assert float(updates["w"]) == pytest.approx(expected, rel=1e-12)


def test_an_injected_schedule_is_seen_from_its_first_value_on_and_is_a_metric():
    transform, params = inject_hyperparams(adam)(0.1, b2=schedules.linear(0.9, 0.99, 9)), w(1.0)
    state, seen = transform.init(params), []
    for _ in range(3):
        _, state = transform.update(w(1.0), state, params)
        seen.append(float(collect_metrics(state, "adam")["optimizer/adam/b2"]))
    assert seen == pytest.approx([0.9, 0.91, 0.92])


def test_a_schedule_has_the_same_values_injected_or_not():
    schedule, params = schedules.linear(0.0, 1.0, 4), w(1.0)
    plain, _ = outputs(sgd(schedule), [1.0] * 5)
    injected, _ = outputs(inject_hyperparams(sgd)(schedule), [1.0] * 5)
    scaled, _ = outputs(scale_by_schedule(lambda count: -schedule(count)), [1.0] * 5)
    assert plain == injected == scaled == [0.0, -0.25, -0.5, -0.75, -1.0]
    assert float(params["w"]) == 1.0


def test_static_arguments_stay_numbers_and_unknown_ones_are_refused():
    def make(step_size, names):
        assert isinstance(step_size, float)
        return scale(step_size)

    transform = inject_hyperparams(make, static_args="step_size")(2.0, ["x"])
    assert outputs(transform, [1.0])[0] == [2.0]
    with pytest.raises(ValueError, match="'stepsize'"):
        inject_hyperparams(make, static_args="stepsize")


def test_flatten_shows_one_vector_and_gives_the_same_numbers():
    params = {"a": torch.ones(2, 3, dtype=torch.float64), "b": torch.tensor(2.0, dtype=torch.float64)}
    grads = tree.map(lambda p: 0.5 * p, params)
    seen = []
    spy = GradientTransform(lambda p: (), lambda u, s, p=None, **extra: (seen.append(u.shape) or u, s), "spy")
    flatten(spy).update(grads, (), params)
    assert seen == [torch.Size([7])]
    plain, wrapped = adamw(0.1), flatten(adamw(0.1))
    torch.testing.assert_close(wrapped.update(grads, wrapped.init(params), params)[0], plain.update(grads, plain.init(params), params)[0])


def test_split_real_and_imaginary_is_torchs_view_of_complex_parameters():
    params = {"w": torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex128)}
    theirs = params["w"].clone().requires_grad_()
    optimizer, transform = torch.optim.Adam([theirs], 0.1), split_real_and_imaginary(adam(0.1))
    state = transform.init(params)
    for step in range(3):
        grads = {"w": params["w"] * (0.5 + step)}
        theirs.grad = grads["w"].clone()
        optimizer.step()
        updates, state = transform.update(grads, state, params)
        params = apply_updates(params, updates)
    torch.testing.assert_close(params["w"], theirs.detach(), rtol=0, atol=1e-12)


def test_lookahead_goes_back_part_of_the_way():
    transform, params = lookahead(sgd(1.0), sync_period=2, slow_step_size=0.5), w(0.0)
    state, places = transform.init(params), []
    for _ in range(4):
        updates, state = transform.update(w(-1.0), state, params)
        params = apply_updates(params, updates)
        places.append(float(params["w"]))
    assert places == [1.0, 1.0, 2.0, 2.0]
    assert float(state.slow["w"]) == 2.0


def test_lookahead_waits_with_its_inner_optimizer():
    transform, params = lookahead(chain(accumulate(2), sgd(1.0)), sync_period=1, slow_step_size=0.5), w(0.0)
    state = transform.init(params)
    for _ in range(2):
        updates, state = transform.update(w(-1.0), state, params)
        params = apply_updates(params, updates)
    assert float(params["w"]) == 0.5


def test_apply_every_sums_and_emits():
    assert outputs(apply_every(3), [1.0, 2.0, 3.0, 4.0])[0] == [0.0, 0.0, 6.0, 0.0]


def test_measurements_are_metrics_and_leave_the_updates_alone():
    measures = {
        "norm": tree.global_norm,
        "mean_norm": measure_with_ema(tree.global_norm, 0.5),
        "plain": measure_with_ema(tree.global_norm, 0.5, False),
    }
    transform = chain(snapshot("seen/first", tree.global_norm), scale(2.0), monitor(measures))
    out, state = outputs(transform, [1.0, 3.0])
    metrics = {name: float(value) for name, value in collect_metrics(state, "chain").items()}
    assert out == [2.0, 6.0]
    assert metrics["seen/first"] == 3.0
    assert metrics["optimizer/monitor/norm"] == 6.0
    assert metrics["optimizer/monitor/mean_norm"] == pytest.approx((0.25 * 2 + 0.5 * 6) / 0.75)
    assert metrics["optimizer/monitor/plain"] == pytest.approx(0.25 * 2 + 0.5 * 6)


def test_names_are_keys_of_the_state_and_must_differ():
    transform = named_chain(("warm", trace(0.9)), ("cold", named("ignored", scale(1.0))))
    assert set(transform.init(w(0.0))) == {"warm", "cold"}
    with pytest.raises(ValueError, match="must differ"):
        named_chain(("same", trace(0.9)), ("same", scale(1.0)))


def test_frozen_leaves_of_a_selective_transform_have_no_state_and_never_move():
    params = {"frozen": torch.ones(5), "train": torch.ones(2)}
    transform = selective_transform(adamw(0.1, weight_decay=0.5), freeze_mask="frozen")
    state = transform.init(params)
    updates, state = transform.update(params, state, params)
    assert all(leaf.shape != (5,) for leaf in tree.leaves(state))
    assert torch.equal(apply_updates(params, updates)["frozen"], params["frozen"])
    assert not torch.equal(apply_updates(params, updates)["train"], params["train"])


def test_no_learning_rate_is_the_identity():
    assert outputs(scale_by_learning_rate(None), [3.0])[0] == [3.0]


def test_metrics_say_the_learning_rate_and_the_decay_in_force():
    optimizer, params = adamw(schedules.linear(0.1, 0.0, 10), weight_decay=0.01), w(1.0)
    state = optimizer.init(params)
    for _ in range(2):
        _, state = optimizer.update(w(1.0), state, params)
    metrics = collect_metrics(state, optimizer.name)
    assert float(metrics["optimizer/adamw/lr"]) == pytest.approx(0.09)
    assert float(metrics["optimizer/adamw/weight_decay"]) == 0.01


def test_a_part_that_looks_at_parameters_says_so():
    transform = add_decayed_weights(0.1)
    with pytest.raises(TypeError, match="add_decayed_weights looks at the parameters"):
        transform.update(w(1.0), transform.init(w(1.0)))


def test_examples_are_clipped_one_by_one():
    grads = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([4.0, 0.4])}
    total, clipped = per_example_global_norm_clip(grads, 1.0)
    torch.testing.assert_close(total, {"a": torch.tensor([0.9, 0.0]), "b": torch.tensor(1.2)})
    assert int(clipped) == 1
    by_leaf, counts = per_example_layer_norm_clip(grads, 2.0**0.5)
    torch.testing.assert_close(by_leaf, {"a": torch.tensor([1.3, 0.0]), "b": torch.tensor(1.4)})
    assert {name: int(count) for name, count in counts.items()} == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="batch dimension"):
        per_example_global_norm_clip({"a": torch.ones(2, 1), "b": torch.ones(3)}, 1.0)


def test_updates_of_examples_are_averaged_and_their_variance_is_kept():
    updates, params = w([1.0, 2.0], [3.0, 6.0]), w(0.0, 0.0)
    mean, _ = average_per_element_updates().update(updates, (), params)
    transform = add_mean_variance_to_opt(sgd(1.0))
    out, state = transform.update(updates, transform.init(params), params)
    averages = get_unbiased_mean_and_variance_ema(state)
    assert mean["w"].tolist() == [2.0, 4.0]
    assert out["w"].tolist() == [-2.0, -4.0]
    assert [leaf["w"].tolist() for leaf in averages] == [pytest.approx([2.0, 4.0]), pytest.approx([2.0, 8.0])]
    with pytest.raises(ValueError, match="two examples"):
        transform.update(w([1.0, 2.0]), state, params)


def test_parameters_follow_others():
    assert float(incremental_update(w(1.0), w(0.0), 0.25)["w"]) == 0.25
    assert [float(periodic_update(w(1.0), w(0.0), torch.tensor(step), 2)["w"]) for step in range(3)] == [1.0, 0.0, 1.0]


def test_the_mask_for_decay_takes_matrices_only():
    params = {"weight": torch.ones(2, 2), "bias": torch.ones(2), "scale": torch.ones(())}
    assert at_least_2d(params) == {"weight": True, "bias": False, "scale": False}
    transform = adamw(1.0, weight_decay=0.5, mask=at_least_2d)
    updates, _ = transform.update(tree.zeros_like(params), transform.init(params), params)
    assert [float(leaf.sum()) for leaf in tree.leaves(updates)] == [0.0, 0.0, -2.0]


@pytest.mark.parametrize("make", [sgd, adam, adamw])
def test_two_steps_can_be_differentiated_by_the_learning_rate(make):
    optimizer, start = make(0.1), w(1.0, -2.0)

    def loss_after(rate):
        params, state = start, set_hyperparams(optimizer.init(start), learning_rate=rate)
        for _ in range(2):
            updates, state = optimizer.update(tree.map(lambda p: p**3, params), state, params)
            params = apply_updates(params, updates)
        return (params["w"] ** 2).sum()

    rate = torch.tensor(0.1, dtype=torch.float64)
    by_difference = (loss_after(rate + 1e-6) - loss_after(rate - 1e-6)) / 2e-6
    leaf = rate.clone().requires_grad_()
    # a central difference of 1e-6 is good to about eight digits
    torch.testing.assert_close(torch.func.grad(loss_after)(rate), by_difference, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss_after(leaf), leaf)[0], by_difference, rtol=1e-6, atol=0)
