"""Windows of accumulation: nothing outside the state knows of them, and nothing but the data decides on their result."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from purestep.validation import validate
from tests.examples_of_models import Plain, batches, forward, mean_squared_error, poisoned, run, seeded, training


def squares(w, x):
    """`y = w x` against 0, as a sum and a count."""
    return ps.Sums((w * x).square().sum(), torch.full_like(w, len(x)))


def windowed(every, *parts):
    return training(seeded(Plain), ps.chain(*parts, ps.accumulate(every), ps.adamw(1e-2, weight_decay=0.1)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("parts", [[(1, 2, 3, 4)], [(1, 2, 3), (4,)], [(1,), (2, 3, 4)], [(1,), (2,), (3,), (4,)], [(1, 2, 3, 4), ()]])
def test_four_numbers_give_one_gradient_in_whatever_windows_they_come(parts, dtype):
    optimizer = ps.chain(ps.accumulate(len(parts)), ps.clip_by_global_norm(1e3), ps.sgd(1.0))
    step = ps.make_step(squares, optimizer)
    state = ps.init_state(torch.ones((), dtype=dtype), optimizer)
    after, metrics = run(step, state, [torch.tensor(part, dtype=dtype) for part in parts])
    rel = {torch.float64: 1e-12, torch.float32: 1e-6}[dtype]
    assert (1.0 - after.params).item() == pytest.approx(15.0, rel=rel)
    assert metrics["update/grad_norm"].item() == pytest.approx(15.0, rel=rel)


def test_validating_in_the_middle_of_a_window_does_not_close_or_shift_it():
    tr, data = windowed(4), batches(4)
    state, _ = tr.step(tr.init(), data[0])
    validate(tr, state, ps.Validation(batches(3, seed=5)))
    interrupted, _ = run(tr.step, state, data[1:])
    assert interrupted.counters.step_count.item() == 1
    assert_trees_equal(interrupted, run(tr.step, tr.init(), data)[0])


def test_a_validation_loss_is_not_divided_by_the_window():
    one, four = windowed(1), windowed(4)
    state, held_out = four.init(), ps.Validation(batches(3, seed=5))
    assert validate(four, state, held_out)["loss/total"] == validate(one, one.init(), held_out)["loss/total"]


def test_a_reported_loss_is_that_of_its_batch_whatever_the_window():
    reported = []
    for every in (1, 4):
        tr = training(seeded(Plain), ps.chain(ps.accumulate(every), ps.sgd(0.0)))
        reported.append([tr.step(tr.init(), batch)[1]["loss/total"].item() for batch in batches(4)])
    assert reported[0] == reported[1]


def test_a_nan_in_a_window_of_two_leaves_the_update_that_would_have_come_without_it():
    tr, data = windowed(2, ps.skip_nonfinite()), batches(6)
    with_bad, metrics = run(tr.step, tr.init(), [*data[:2], poisoned(data[2]), *data[2:]])
    without, _ = run(tr.step, tr.init(), data)
    assert_trees_equal(with_bad.params, without.params)
    assert_trees_equal(with_bad.opt_state["adamw"], without.opt_state["adamw"])
    assert (with_bad.counters.step_count.item(), metrics["skip_nonfinite/by_loss"].item()) == (3, 1)


def test_twelve_samples_at_once_and_in_three_parts_are_one_update_of_adam_with_decay():
    whole = training(seeded(Plain), ps.adamw(1e-2, weight_decay=0.1))
    parts = windowed(3)
    expected, other = whole.init(), parts.init()
    for number in range(4):
        data = batches(3, size=4, seed=number)
        expected, _ = whole.step(expected, {key: torch.cat([batch[key] for batch in data]) for key in data[0]})
        other, _ = run(parts.step, other, data)
    # sums of the same numbers in another order, magnified by Adam's division
    assert_trees_close(other.params, expected.params, rtol=1e-10, atol=1e-12)
    assert other.counters.step_count.item() == 4


def test_a_window_keeps_what_batchnorm_learns_from_each_batch():
    tr = training(optimizer=ps.chain(ps.accumulate(3), ps.sgd(0.1)))
    state, _ = run(tr.step, tr.init(), batches(3))
    assert state.buffers["norm.num_batches_tracked"].item() == 3


def test_composed_losses_in_a_window_weigh_batches_by_their_first_term_and_cuts_are_exact():
    masked = mean_squared_error(mask_key="there", name="masked")
    loss = 1.0 * mean_squared_error() + 1.0 * masked
    batch = {**batches(1, size=6)[0], "there": torch.tensor([True, False, False, False, True, True])}
    halves = [{key: value[part] for key, value in batch.items()} for part in (slice(0, 4), slice(4, 6))]
    whole, cut = (training(seeded(Plain), ps.sgd(0.1), loss=loss, forward=forward, microbatches=k) for k in (1, 2))
    window = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(0.1)), loss=loss, forward=forward)
    expected = whole.step(whole.init(), batch)[0].params
    assert_trees_close(cut.step(cut.init(), tuple(halves))[0].params, expected, rtol=1e-12, atol=1e-12)
    # the window cannot know the denominators of what is still to come: it gives each batch the weight of its samples
    alone = [whole.step(whole.init(), half)[0].params for half in halves]
    by_samples = ps.tree.map(lambda one, two: (4 * one + 2 * two) / 6, *alone)
    assert_trees_close(run(window.step, window.init(), halves)[0].params, by_samples, rtol=1e-12, atol=1e-12)
