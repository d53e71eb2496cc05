"""Listeners that end a run: patience, a good value, time, compute; and the one that remembers the best."""

import pytest
import torch

import purestep as ps
from purestep.core import tree
from purestep.loop import BestTracker, EarlyStopping, RefuseNonfinite, StopAfterGlobalSteps, StopAfterSamples, StopAtMetric, StopAtTime, fit
from tests.examples_of_models import batches, poisoned, training
from tests.reporting.events import event


def validated(value, metric="loss/total", batch=1):
    return event(ps.Stage.AFTER_VALIDATION, batch=batch, validation={metric: value})


def answers(listener, values):
    return [listener(validated(value)) for value in values]


def test_early_stopping_waits_for_as_many_values_as_its_patience():
    assert answers(EarlyStopping(patience=2), [3.0, 2.0, 2.5, 1.5, 1.5, 1.6]) == [None] * 5 + [ps.Stop("early_stopping")]


def test_an_improvement_smaller_than_min_delta_does_not_count():
    assert answers(EarlyStopping(patience=1, min_delta=0.5), [3.0, 2.0, 1.6]) == [None, None, ps.Stop("early_stopping")]


def test_early_stopping_can_look_for_large_values_and_never_takes_nan_for_one():
    assert answers(EarlyStopping(patience=2, mode="max"), [float("nan"), 1.0, 2.0, float("nan"), 1.5])[-1] == ps.Stop("early_stopping")


def test_early_stopping_goes_on_from_the_past():
    listener = EarlyStopping(patience=3, past=[3.0, 1.0, 2.0, 2.0])
    assert (listener.best, listener.waited) == (1.0, 2)
    assert answers(listener, [1.5]) == [ps.Stop("early_stopping")]


def test_early_stopping_does_not_count_a_validation_that_is_made_because_the_run_ends():
    listener = EarlyStopping(patience=1, past=[1.0])
    final = event(ps.Stage.AFTER_VALIDATION, validation={"loss/total": 2.0}, stop_reason="num_steps")
    assert (listener(final), listener.waited) == (None, 0)


def test_early_stopping_ends_a_run_that_does_not_learn():
    tr = training(optimizer=ps.sgd(0.0))
    validation = ps.Validation(batches(1), every_n_epochs=1)
    result = fit(tr, batches(1), num_epochs=50, validation=validation, listeners=[EarlyStopping(patience=2)])
    assert (result.stop_reason, int(result.state.counters.epoch_count)) == ("early_stopping", 3)


def test_a_target_metric_is_reached_from_its_own_side():
    assert answers(StopAtMetric("loss/total", 1.0), [2.0, float("nan"), 1.0]) == [None, None, ps.Stop("target_metric")]
    assert answers(StopAtMetric("validation/loss/total", 1.0, mode="max"), [0.5, 1.5]) == [None, ps.Stop("target_metric")]


def test_a_metric_that_validation_lacks_is_an_error_that_lists_those_it_has():
    with pytest.raises(ValueError, match="no metric 'accuracy' in the validation; it has loss/total"):
        StopAtMetric("accuracy", 1.0)(validated(1.0))


def test_the_best_state_is_a_copy_of_its_own():
    tr = training()
    best = BestTracker(keep_state=True)
    values = []
    validation = ps.Validation(batches(1), every_n_steps=1)
    compiled = ps.compile(tr.step, donate=True, backend="eager")  # which reuses the memory of each state
    fit(tr, batches(6), num_steps=6, validation=validation, step=compiled, listeners=[best, keep(values)])
    lowest = min(range(6), key=values.__getitem__)
    assert (best.value, best.batch_count) == (values[lowest], lowest + 1)
    again = fit(tr, batches(6), num_steps=best.batch_count).state
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(best.state.params), tree.leaves(again.params), strict=True))


def keep(values):
    def listen(event):
        if event.stage is ps.Stage.AFTER_VALIDATION:
            values.append(event.validation["loss/total"])

    return listen


def test_time_is_looked_at_after_batches():
    seconds = iter([0.0, 4.0, 6.0]).__next__
    listener = StopAtTime(5.0, clock=seconds)
    assert [listener(event(stage)) for stage in (ps.Stage.BEFORE_EPOCH, ps.Stage.AFTER_BATCH, ps.Stage.AFTER_BATCH)] == [
        None,
        None,
        ps.Stop("time"),
    ]


def test_a_budget_of_global_steps_counts_applied_updates():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)))
    good, bad = batches(2)
    result = fit(tr, [good, poisoned(bad)], num_epochs=9, listeners=[StopAfterGlobalSteps(3)])
    assert (result.stop_reason, int(result.state.counters.batch_count)) == ("global_steps", 5)


def test_a_budget_of_global_steps_goes_on_where_a_resumed_run_stands():
    state = fit(training(), batches(4), num_steps=3).state
    assert int(fit(training(), batches(4), state=state, num_epochs=9, listeners=[StopAfterGlobalSteps(5)]).state.counters.step_count) == 5


def test_a_budget_of_global_steps_sees_the_update_that_closes_an_epoch():
    tr = training(optimizer=ps.chain(ps.accumulate(4), ps.sgd(0.1)))
    result = fit(tr, batches(6), num_epochs=9, listeners=[StopAfterGlobalSteps(2)])
    assert (result.stop_reason, int(result.state.counters.batch_count)) == ("global_steps", 6)


def test_a_budget_of_samples_counts_rows():
    result = fit(training(), batches(5, size=8), num_epochs=9, listeners=[StopAfterSamples(50)])
    assert (result.stop_reason, int(result.state.counters.batch_count)) == ("samples", 7)
    assert int(fit(training(), batches(5, size=8), num_epochs=9, listeners=[StopAfterSamples(50, done=40)]).state.counters.batch_count) == 2


@pytest.mark.parametrize("make", [lambda: EarlyStopping(patience=0), lambda: EarlyStopping(patience=1, min_delta=-1.0)])
def test_impatience_is_refused(make):
    with pytest.raises(ValueError, match="patience must be at least 1"):
        make()


@pytest.mark.parametrize("make", [lambda mode: EarlyStopping(patience=1, mode=mode), lambda mode: StopAtMetric("a", 1, mode=mode)])
def test_an_unknown_mode_is_refused(make):
    with pytest.raises(ValueError, match="mode must be 'min' or 'max', got 'best'"):
        make("best")


def test_parameters_that_are_lost_end_the_run_with_the_first_of_them():
    tr = training(optimizer=ps.sgd(0.1))
    data = batches(6)
    data[2] = poisoned(data[2])
    with pytest.raises(ps.errors.StallError, match=r"after batch 4 the loss is nan and params\.encoder\.bias is not finite"):
        fit(tr, data, num_epochs=1, listeners=[RefuseNonfinite(every_n_batches=2)])


def test_parameters_that_are_lost_at_the_very_end_are_noticed():
    data = batches(3)
    data[2] = poisoned(data[2])
    with pytest.raises(ps.errors.StallError, match="after batch 3"):
        fit(training(optimizer=ps.sgd(0.1)), data, num_epochs=1, listeners=[RefuseNonfinite(every_n_batches=100)])


def test_a_bad_batch_whose_update_is_vetoed_ends_nothing():
    data = batches(6)
    data[2] = poisoned(data[2])
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)))
    assert fit(tr, data, num_epochs=1, listeners=[RefuseNonfinite(every_n_batches=1)]).stop_reason == "num_epochs"
