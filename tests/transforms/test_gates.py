"""Gates: what they reject, what they count, and that nothing leaks past them."""

import pytest
import torch

from purestep.core.transform import apply_updates, chain, collect_metrics
from purestep.errors import TransformError
from purestep.optimizers import adam, sgd
from purestep.transforms import accumulate, clip_by_global_norm, dynamic_loss_scale, skip_large_updates, skip_nonfinite, skip_spikes

NAN, INF = float("nan"), float("inf")


def one(value):
    return {"a": torch.zeros(2, dtype=torch.float64), "w": torch.tensor([value, 0.0], dtype=torch.float64)}


def drive(gate, values, losses=None):
    """Whether each update was applied, and the state in the end."""
    state, applied = gate.init(one(0.0)), []
    for value, loss in zip(values, losses or values, strict=True):
        updates, state = gate.update(one(value), state, one(0.0), value=torch.tensor(loss, dtype=torch.float64))
        applied.append(bool(updates.apply))
    return applied, state


def test_skip_nonfinite_counts_by_cause_and_names_the_leaf():
    applied, state = drive(skip_nonfinite(), [1.0, NAN, INF, 1.0], [1.0, 1.0, NAN, 1.0])
    assert applied == [True, False, False, True]
    assert (int(state.by_updates), int(state.by_loss), int(state.consecutive), int(state.leaf)) == (1, 1, 0, 1)


def test_skip_nonfinite_never_gives_in_and_asks_for_a_halt_only_while_it_lasts():
    gate, params = chain(skip_nonfinite(max_consecutive=2), adam(0.1)), one(1.0)
    state = gate.init(params)
    halts = []
    for value in [NAN, NAN, NAN, 1.0]:
        updates, state = gate.update(one(value), state, params)
        halts.append(int(collect_metrics(state, gate.name)["skip_nonfinite/halt"]))
        params = apply_updates(params, updates)
    assert halts == [0, 1, 1, 0]
    assert all(leaf.isfinite().all() for leaf in params.values())
    assert int(state["adam"]["scale_by_adam"].count) == 1


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_skip_nonfinite_sees_every_kind_in_every_dtype(bad, dtype):
    gate, params = skip_nonfinite(), {"empty": torch.zeros(0, dtype=dtype), "w": torch.zeros(3, dtype=dtype)}
    updates, _ = gate.update({"empty": params["empty"], "w": torch.tensor([1.0, bad, 2.0]).to(dtype)}, gate.init(params), params)
    assert not updates.apply
    assert updates.reject


def test_skip_nonfinite_accepts_the_largest_numbers():
    gate, params = skip_nonfinite(), {"w": torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)}
    assert gate.update(params, gate.init(params), params)[0].apply


def test_skip_spikes_rejects_a_spike_and_does_not_learn_from_it():
    gate = skip_spikes(warmup=4, window=8, max_consecutive=3)
    applied, state = drive(gate, [1.0, 1.1, 0.9, 1.0, 50.0, 50.0, 1.0, 1.05])
    assert applied == [True, True, True, True, False, False, True, True]
    assert int(state.skipped) == 2
    assert float(state.limit) < 2.0


def test_skip_spikes_accepts_a_new_level_after_enough_rejections_in_a_row():
    gate = skip_spikes(warmup=4, window=4, max_consecutive=2)
    applied, _ = drive(gate, [1.0, 1.1, 0.9, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    assert applied == [True] * 4 + [False, False, True, False, False, True]


def test_skip_spikes_lets_everything_finite_through_while_it_warms_up():
    applied, _ = drive(skip_spikes(warmup=4, window=8), [1.0, 100.0, 1e6, NAN, 1e-3])
    assert applied == [True, True, True, False, True]


def test_skip_spikes_never_accepts_what_is_not_finite():
    applied, _ = drive(skip_spikes(warmup=2, window=4, max_consecutive=1), [1.0, 1.0, NAN, NAN, INF, 1.0])
    assert applied == [True, True, False, False, False, True]


def test_skip_spikes_tolerates_noise_on_a_flat_stretch():
    applied, _ = drive(skip_spikes(warmup=4, window=8), [1.0] * 8 + [1.02])
    assert all(applied)


def test_skip_spikes_by_norm_looks_at_the_updates():
    applied, _ = drive(skip_spikes(by="grad_norm", warmup=3, window=8), [1.0, 1.1, 0.9, 30.0], [0.0] * 4)
    assert applied == [True, True, True, False]


def test_skip_spikes_by_loss_cannot_do_without_the_loss():
    gate = chain(skip_spikes(), sgd(0.1))
    with pytest.raises(TransformError, match="chain needs value"):
        gate.update(one(1.0), gate.init(one(0.0)), one(0.0))


def test_skip_large_updates_compares_the_squared_norm():
    applied, state = drive(skip_large_updates(4.0), [1.9, 2.0, NAN], [0.0] * 3)
    assert applied == [True, False, False]
    assert int(state.skipped) == 2


def test_loss_scale_backs_off_at_an_overflow_and_grows_again():
    gate = dynamic_loss_scale(initial_scale=8.0, growth_interval=2)
    state, scales = gate.init(one(0.0)), []
    for value in [1.0, INF, 1.0, 1.0, 1.0]:
        _, state = gate.update(one(value), state, one(0.0))
        scales.append(float(state.scale))
    assert scales == [8.0, 4.0, 4.0, 8.0, 8.0]


def test_loss_scale_stays_in_its_bounds():
    gate = dynamic_loss_scale(initial_scale=2.0, growth_interval=1, min_scale=1.0, max_scale=4.0)
    _, low = drive(gate, [INF, INF, INF])
    _, high = drive(gate, [1.0, 1.0, 1.0])
    assert (float(low.scale), float(high.scale)) == (1.0, 4.0)


def test_loss_scale_leaves_gradients_of_the_loss_itself():
    optimizer = chain(dynamic_loss_scale(), clip_by_global_norm(1.0), sgd(0.1))
    w = torch.tensor([3.0, 4.0])
    state = optimizer.init({"w": w})
    leaf = w.clone().requires_grad_()
    loss = optimizer.scale_loss((leaf**2).sum() / 2, state)
    (grad,) = torch.autograd.grad(loss, leaf)
    updates, state = optimizer.update({"w": grad}, state, {"w": w})
    assert float(loss.detach()) == 12.5 * 2.0**16
    assert float(state["clip_by_global_norm"].norm) == 5.0
    torch.testing.assert_close(updates.updates["w"], -0.1 * w / 5.0)


def test_a_bad_batch_before_accumulate_never_enters_the_window():
    optimizer, params = chain(skip_nonfinite(), accumulate(2), sgd(1.0)), one(0.0)
    state = optimizer.init(params)
    for value in [1.0, NAN, 3.0]:
        updates, state = optimizer.update(one(value), state, params)
        params = apply_updates(params, updates)
    assert params["w"].tolist() == [-2.0, 0.0]


def test_a_rejection_after_accumulate_drops_the_window():
    optimizer, params = chain(accumulate(2), skip_large_updates(4.0), sgd(1.0)), one(0.0)
    state = optimizer.init(params)
    for value in [1.0, 30.0, 1.0, 0.5]:
        updates, state = optimizer.update(one(value), state, params)
        params = apply_updates(params, updates)
    assert params["w"].tolist() == [-0.75, 0.0]
