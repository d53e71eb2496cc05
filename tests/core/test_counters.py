"""Counting: batches, updates, epochs; under windows, rejected batches and epoch ends."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, poisoned, run, seeded, training

COUNTS = ("batch_count", "step_count", "global_step_count", "epoch_count", "epoch_step_count")


def counts(state):
    return tuple(getattr(state.counters, name).item() for name in COUNTS)


def test_counters_begin_at_zero_and_are_whole_numbers_of_no_dimension():
    leaves = ps.tree.leaves(training().init().counters)
    assert [(leaf.item(), leaf.dtype, leaf.shape) for leaf in leaves] == [(0, torch.int64, ())] * 5


def test_every_batch_is_an_update_where_nothing_vetoes():
    tr = training()
    state, _ = run(tr.step, tr.init(), batches(3))
    assert counts(state) == (3, 3, 3, 0, 3)


WINDOWS = {
    # of 10 batches: two full windows and the rest of 2, which is emitted, dropped, or carried into the next epoch
    "partial": [(2, 3), (5, 6), (8, 9)],
    "drop": [(2, 2), (4, 4), (6, 6)],
    "carry": [(2, 2), (5, 5), (7, 7)],
}


@pytest.mark.parametrize("last", sorted(WINDOWS))
def test_ten_batches_an_epoch_in_windows_of_four(last):
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4, last=last), ps.sgd(0.01)))
    state, data = tr.init(), batches(10)
    for epoch, (before, after) in enumerate(WINDOWS[last], start=1):
        state, _ = run(tr.step, state, data)
        assert counts(state) == (10 * epoch, before, before, epoch - 1, 10)
        state = tr.end_epoch(state)
        assert counts(state) == (10 * epoch, after, after, epoch, 0)


def test_the_rest_of_a_window_is_the_mean_over_what_is_there():
    data = batches(2)
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4), ps.sgd(0.1)))
    state, _ = run(tr.step, tr.init(), data)
    closed = tr.end_epoch(state)
    whole = training(seeded(Plain), ps.sgd(0.1))
    together = {key: torch.cat([batch[key] for batch in data]) for key in data[0]}
    expected, _ = whole.step(whole.init(), together)
    for path, leaf in closed.params.items():
        assert torch.allclose(leaf, expected.params[path], rtol=0, atol=1e-14), path


def test_closing_an_epoch_twice_or_without_a_window_emits_nothing():
    tr = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(0.1)), hooks=(ps.hooks.ema(0.9),))
    state, _ = run(tr.step, tr.init(), batches(2))
    for _ in range(2):
        closed = tr.end_epoch(state)
        assert_trees_equal((closed.params, closed.opt_state, closed.hook_state), (state.params, state.opt_state, state.hook_state))
        state = closed


def test_an_average_follows_the_update_that_closes_an_epoch():
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4), ps.sgd(0.1)), hooks=(ps.hooks.swa(),))
    state, _ = run(tr.step, tr.init(), batches(2))
    closed = tr.end_epoch(state)
    assert closed.hook_state["swa"].memory.item() == 1
    assert_trees_equal(ps.hooks.average(closed, "swa")[0], closed.params)


def test_end_epoch_is_pure():
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4), ps.adamw(0.1)))
    state, _ = run(tr.step, tr.init(), batches(2))
    before = ps.tree.clone(state)
    first, second = tr.end_epoch(state), tr.end_epoch(state)
    assert_trees_equal(state, before)
    assert_trees_equal(first, second)


def test_a_rejected_batch_moves_only_batch_counters():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)))
    good, bad = batches(2)
    state, _ = tr.step(tr.init(), good)
    assert counts(tr.step(state, poisoned(bad))[0]) == (2, 1, 1, 0, 2)


def test_a_batch_rejected_before_the_window_is_not_part_of_it():
    tr = training(seeded(Plain), ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.sgd(0.1)))
    one, two, three = batches(3)
    state, metrics = run(tr.step, tr.init(), [one, poisoned(two), three])
    assert counts(state)[:2] == (3, 1)
    plain = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(0.1)))
    expected, _ = run(plain.step, plain.init(), [one, three])
    assert_trees_equal(state.params, expected.params)
    assert metrics["skip_nonfinite/by_loss"].item() == 1


def test_a_schedule_counts_updates_not_batches():
    rates = ps.schedules.linear(1.0, 0.0, 10)
    tr = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(rates)))
    state, seen = tr.init(), []
    for batch in batches(6):
        state, metrics = tr.step(state, batch)
        seen.append(round(metrics["optimizer/sgd/lr"].item(), 12))
    # of each window, the rate that its update used; while one is open, that of the update before
    assert seen[1::2] == [1.0, 0.9, 0.8]


def test_ranks_count_global_updates_by_their_number():
    counters = ps.Counters(*(torch.tensor(5) for _ in range(5)))
    from purestep.core.state import count_batch

    after = count_batch(counters, torch.tensor(True), world_size=4)
    assert (after.step_count.item(), after.global_step_count.item()) == (6, 9)
    assert count_batch(counters, torch.tensor(False), world_size=4).global_step_count.item() == 5


def test_end_epoch_of_the_package_counts_and_keeps_the_rest():
    state = training().init()
    closed = ps.end_epoch(state)
    assert counts(closed) == (0, 0, 0, 1, 0)
    assert_trees_equal((closed.params, closed.opt_state), (state.params, state.opt_state))


def test_a_validation_value_that_nobody_waits_for_is_refused():
    with pytest.raises(ValueError, match="no transform in this optimizer waits for a validation value"):
        ps.observe(training().init(), 1.0)


def test_a_window_of_sums_is_closed_without_counting_a_batch():
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4, reduction="sum"), ps.sgd(0.01)))
    state, _ = run(tr.step, tr.init(), batches(2))
    closed = tr.end_epoch(state).opt_state["accumulate"]
    assert (closed.micro_step.item(), closed.weight.item()) == (0, 0.0)


def test_parts_behind_a_window_see_its_loss_when_an_epoch_closes_it():
    tr = training(seeded(Plain), ps.chain(ps.accumulate(4), ps.sgd(0.01), ps.reduce_on_plateau()))
    state, metrics = run(tr.step, tr.init(), batches(1))
    closed = tr.end_epoch(state)
    assert closed.opt_state["reduce_on_plateau"].best_value.item() == pytest.approx(metrics["loss/total"].item(), rel=1e-12)


def test_a_leaf_that_the_loss_does_not_reach_stays_when_an_epoch_closes_a_window():
    optimizer = ps.chain(ps.accumulate(4), ps.adamw(0.1, weight_decay=0.5))
    model = torch.nn.ModuleDict({"used": seeded(Plain), "idle": torch.nn.Linear(2, 2).double()})
    tr = training(model, optimizer, forward=lambda model, batch: {"y": model["used"](batch["x"])})
    with pytest.warns(UserWarning, match=r"does not depend on idle\.bias"):
        state, _ = tr.step(tr.init(), batches(1)[0])
    closed = tr.end_epoch(state)
    assert closed.counters.step_count.item() == 1
    assert torch.equal(closed.params["idle.weight"], state.params["idle.weight"])
    assert not torch.equal(closed.params["used.out.weight"], state.params["used.out.weight"])


class Unused(Plain):
    """Has a parameter that its forward never reads."""

    def __init__(self):
        super().__init__()
        self.spare = torch.nn.Parameter(torch.ones(2))


@pytest.mark.filterwarnings("ignore:the loss does not depend on")
def test_a_process_that_begins_at_the_end_of_an_epoch_leaves_an_unused_parameter_alone_too():
    make = lambda: training(seeded(Unused), ps.chain(ps.accumulate(4), ps.adamw(0.1, weight_decay=0.5)))  # noqa: E731
    first = make()
    state, _ = run(first.step, first.init(), batches(6))
    closed, again = first.end_epoch(state), make().end_epoch(state)  # the second has never seen a batch
    assert closed.counters.step_count.item() == 2
    assert_trees_equal(again, closed)
    assert closed.params["spare"].tolist() == [1.0, 1.0]
