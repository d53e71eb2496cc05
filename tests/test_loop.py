"""The loop: order of events, counters, targets, stalls, listeners, and pieces that equal one run."""

import warnings

import pytest
import torch

import purestep as ps
from purestep.core import tree
from purestep.errors import DataError, StallError
from tests.examples_of_models import Plain, batches, poisoned, seeded, training


def same(one, other):
    return [path for path, a, b in zip(tree.paths(one), tree.leaves(one), tree.leaves(other), strict=True) if not torch.equal(a, b)] == []


def recorder(log):
    def listen(event):
        log.append((event.stage.name, event.batch_count, event.step_count, event.epoch_count, event.epoch_step_count))

    return listen


def stop_at(batch_count, stage=ps.Stage.AFTER_BATCH):
    def listen(event):
        return ps.Stop("the test") if event.stage is stage and event.batch_count >= batch_count else None

    return listen


def test_a_run_tells_its_stages_in_order():
    log = []
    ps.fit(training(), batches(2), num_epochs=1, validation=ps.Validation(batches(1), every_n_steps=2), listeners=[recorder(log)])
    assert log == [
        ("SETUP", 0, 0, 0, 0),
        ("BEFORE_TRAINING", 0, 0, 0, 0),
        ("BEFORE_EPOCH", 0, 0, 0, 0),
        ("AFTER_BATCH", 1, 1, 0, 1),
        ("AFTER_VALIDATION", 2, 2, 0, 2),
        ("AFTER_BATCH", 2, 2, 0, 2),
        ("AFTER_EPOCH", 2, 2, 1, 0),
        ("AFTER_TRAINING", 2, 2, 1, 0),
    ]


def test_windows_of_ten_batches_in_fours_are_four_four_and_two():
    log = []
    ps.fit(training(optimizer=ps.chain(ps.accumulate(4), ps.sgd(0.1))), batches(10), num_epochs=3, listeners=[recorder(log)])
    assert [entry[1:] for entry in log if entry[0] == "AFTER_EPOCH"] == [(10, 3, 1, 0), (20, 6, 2, 0), (30, 9, 3, 0)]
    assert [entry[2] for entry in log if entry[0] == "AFTER_BATCH"][:10] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_the_last_window_is_the_mean_over_the_batches_that_are_there():
    data, model = batches(6), seeded(Plain)
    state = ps.fit(training(model, ps.chain(ps.accumulate(4), ps.sgd(0.1))), data, num_epochs=1).state
    four, two = (training(model, ps.sgd(0.1), microbatches=size) for size in (4, 2))
    expected, _ = four.step(four.init(), tuple(data[:4]))
    expected, _ = two.step(expected, tuple(data[4:]))
    # the window adds what the cuts add, in another order of operations
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=1e-15)


def test_an_open_window_may_be_carried_over_or_dropped():
    data = batches(6)
    steps = {
        last: int(
            ps.fit(training(optimizer=ps.chain(ps.accumulate(4, last=last), ps.sgd(0.1))), data, num_epochs=2).state.counters.step_count
        )
        for last in ("partial", "carry", "drop")
    }
    assert steps == {"partial": 4, "carry": 3, "drop": 2}


def test_an_average_of_weights_sees_the_update_of_the_last_window():
    tr = training(optimizer=ps.chain(ps.accumulate(4), ps.sgd(0.1)), hooks=[ps.hooks.ema(0.0)])
    state = ps.fit(tr, batches(6), num_epochs=1).state
    params, _ = ps.hooks.average(state)
    assert same(params, state.params)


def test_gates_before_the_window_hear_of_no_batch_at_the_end_of_an_epoch():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.accumulate(4), ps.sgd(0.1)))
    good, bad = batches(2)
    state = ps.fit(tr, [good, poisoned(bad)], num_epochs=1).state
    assert int(state.opt_state["skip_nonfinite"].consecutive) == 1
    assert int(state.counters.step_count) == 1


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_a_run_in_pieces_equals_a_run_in_one_piece(pieces):
    tr, data = training(hooks=[ps.hooks.ema(0.9)]), batches(3)
    whole = ps.fit(tr, data, num_epochs=10, validation=ps.Validation(data, every_n_epochs=2)).state
    state = tr.init()
    for piece in range(1, pieces + 1):
        state = ps.fit(tr, data, state=state, num_epochs=10 * piece // pieces, validation=ps.Validation(data, every_n_epochs=2)).state
    assert same(state, whole)


def test_a_finished_run_does_nothing():
    tr, data = training(), batches(3)
    done = ps.fit(tr, data, num_epochs=2).state
    log = []
    again = ps.fit(tr, data, state=done, num_epochs=2, listeners=[recorder(log)])
    assert again.state is done
    assert [entry[0] for entry in log] == ["SETUP"]


def test_a_target_in_steps_ends_in_the_middle_of_an_epoch():
    result = ps.fit(training(), batches(5), num_steps=7)
    assert (int(result.state.counters.step_count), result.stop_reason) == (7, "num_steps")
    assert (int(result.state.counters.epoch_count), int(result.state.counters.epoch_step_count)) == (1, 2)


def test_a_target_reached_at_the_end_of_an_epoch_closes_it():
    state = ps.fit(training(), batches(5), num_steps=10).state
    assert (int(state.counters.epoch_count), int(state.counters.epoch_step_count)) == (2, 0)


def test_a_listener_stops_the_run():
    result = ps.fit(training(), batches(5), num_epochs=3, listeners=[stop_at(7)])
    assert (result.stop_reason, int(result.state.counters.batch_count)) == ("the test", 7)


def test_a_listener_stops_the_run_after_a_validation():
    validation = ps.Validation(batches(1), every_n_steps=2)
    result = ps.fit(training(), batches(5), num_epochs=3, validation=validation, listeners=[stop_at(4, ps.Stage.AFTER_VALIDATION)])
    assert int(result.state.counters.batch_count) == 4


def test_how_often_validation_runs_changes_no_bit_of_training():
    tr, data = training(optimizer=ps.chain(ps.adamw(1e-2), ps.reduce_on_plateau()), hooks=[ps.hooks.ema(0.9)]), batches(4)
    runs = [ps.fit(tr, data, num_epochs=2, validation=validation).state for validation in (None, *validations(data))]
    assert all(same(run, runs[0]) for run in runs[1:])


def validations(data):
    return [ps.Validation(data), ps.Validation(data, every_n_steps=1), ps.Validation(data, every_n_epochs=1)]


def test_plateau_transforms_driven_by_validation_hear_of_each_cadence_and_not_of_the_final_pass():
    tr = training(optimizer=ps.chain(ps.sgd(0.0), ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation")))
    state = ps.fit(tr, batches(2), num_epochs=3, validation=ps.Validation(batches(1), every_n_epochs=2)).state
    # of three epochs one is at the cadence: the first value is an improvement on infinity, so nothing is lowered yet
    assert float(state.opt_state["reduce_on_plateau"].scale) == 1.0
    state = ps.fit(tr, batches(2), state=state, num_epochs=4, validation=ps.Validation(batches(1), every_n_epochs=2)).state
    assert float(state.opt_state["reduce_on_plateau"].scale) == 0.5


def test_a_run_whose_every_update_is_vetoed_stops_and_says_why():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(max_consecutive=10**6), ps.sgd(0.1)))
    with pytest.raises(StallError, match="no update was applied in 3 epochs"):
        ps.fit(tr, [poisoned(batch) for batch in batches(2)], num_steps=5)


def test_a_gate_that_asks_to_halt_ends_the_run():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(max_consecutive=2), ps.sgd(0.1)))
    with pytest.raises(StallError, match="skip_nonfinite asks to stop"):
        ps.fit(tr, [poisoned(batch) for batch in batches(4)], num_epochs=1)


def test_targets_are_checked_before_anything_runs():
    with pytest.raises(ValueError, match="exactly one of num_epochs and num_steps"):
        ps.fit(training(), batches(1))
    with pytest.raises(ValueError, match="exactly one of num_epochs and num_steps"):
        ps.fit(training(), batches(1), num_epochs=1, num_steps=1)
    with pytest.raises(ValueError, match="num_steps must be a whole number of at least 1, got True"):
        ps.fit(training(), batches(1), num_steps=True)


def test_data_without_batches_is_an_error():
    with pytest.raises(DataError, match="no batches"):
        ps.fit(training(), [], num_epochs=1)


def test_an_iterator_that_is_used_up_is_an_error_in_the_second_epoch():
    with pytest.raises(DataError, match="iterator that was used up"):
        ps.fit(training(), iter(batches(2)), num_epochs=2)


def test_a_compiled_step_that_donates_gives_the_same_run():
    tr, data = training(), batches(3)
    compiled = ps.compile(tr.step, donate=True, backend="eager")
    assert same(ps.fit(tr, data, num_epochs=2, step=compiled).state, ps.fit(tr, data, num_epochs=2).state)
    assert len(compiled.explain()) == 1


def test_the_history_holds_training_and_validation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = ps.fit(training(), batches(2), num_epochs=2, validation=ps.Validation(batches(1), every_n_epochs=1)).history
    assert [record["epoch_count"] for record in history] == [1.0, 1.0, 2.0, 2.0]
    assert [("validation/loss/total" in record) for record in history] == [True, False, True, False]
