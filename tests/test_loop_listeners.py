"""Listeners that fail, and listeners that are told of a failure."""

import warnings

import pytest
import torch

import purestep as ps
from purestep.core import tree
from purestep.errors import DataError
from purestep.loop import fit
from tests.examples_of_models import batches, training


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True))


class Hearing:
    """Keeps the events with an error that it is told of."""

    hears_errors = True

    def __init__(self):
        self.failures = []

    def __call__(self, event):
        if event.error is not None:
            self.failures.append(event)


def failing(event):
    raise OSError("the disk is full")


class Sulking:
    """Fails, and says itself what that means."""

    def __init__(self, on_error):
        self.on_error = on_error

    def __call__(self, event):
        raise OSError("the tracker is gone")


def fail_at(batch_count, stage=ps.Stage.AFTER_BATCH):
    def listen(event):
        if event.stage is stage and event.batch_count == batch_count:
            raise RuntimeError("in user code")

    return listen


def test_an_error_in_a_listener_ends_the_run_unless_told_otherwise():
    with pytest.raises(OSError, match="the disk is full"):
        fit(training(), batches(2), num_epochs=1, listeners=[failing])


def test_listeners_that_fail_change_no_bit_of_training_and_silence_nobody():
    heard = []
    listeners = [failing, Sulking("ignore"), lambda event: heard.append(event.stage.name)]
    state = fit(training(), batches(3), num_epochs=2, listeners=listeners, on_listener_error="ignore").state
    assert same(state, fit(training(), batches(3), num_epochs=2).state)
    assert heard.count("AFTER_BATCH") == 6


def test_a_warning_names_the_listener_the_place_and_the_error():
    expected = r"listener fail_at.*listen failed at AFTER_BATCH of batch 1, training goes on: RuntimeError: in user code"
    with pytest.warns(RuntimeWarning, match=expected):
        fit(training(), batches(1), num_epochs=1, listeners=[fail_at(1)], on_listener_error="warn")


def test_the_policy_of_a_listener_stands_above_that_of_the_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(training(), batches(1), num_epochs=1, listeners=[Sulking("ignore")]).stop_reason == "num_epochs"
    with pytest.raises(OSError, match="the tracker is gone"):
        fit(training(), batches(1), num_epochs=1, listeners=[Sulking("raise")], on_listener_error="ignore")


@pytest.mark.parametrize(
    ("listeners", "message"),
    [
        ([None], r"listeners\[0\] is not a listener: got None; give a function of an Event"),
        ([failing, "progress"], r"listeners\[1\] is not a listener: got 'progress'"),
        ([Hearing], r"listeners\[0\] is not a listener: .*; make one: Hearing\(...\)"),
        (failing, r"listeners must be a list, got function; write listeners=\[...\]"),
    ],
)
def test_what_is_no_listener_is_refused_before_anything_runs(listeners, message):
    with pytest.raises(TypeError, match=message):
        fit(training(), batches(1), num_epochs=1, listeners=listeners)


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match=r"on_listener_error: unknown policy 'log' \(known: raise, warn, ignore\)"):
        fit(training(), batches(1), num_epochs=1, on_listener_error="log")
    with pytest.raises(ValueError, match="Sulking: unknown policy 'shout'"):
        fit(training(), batches(1), num_epochs=1, listeners=[Sulking("shout")])


def test_an_error_in_the_data_is_told_with_the_last_whole_state():
    def breaking():
        yield from batches(3)
        raise OSError("no such frame")

    class Data:
        def __iter__(self):
            return breaking()

    hearing = Hearing()
    with pytest.raises(OSError, match="no such frame") as caught:
        fit(training(), Data(), num_epochs=1, listeners=[hearing])
    (event,) = hearing.failures
    assert (event.error, event.stage, event.batch_count) == (caught.value, ps.Stage.AFTER_TRAINING, 3)
    assert same(event.state, fit(training(), batches(3), num_batches=3, state=None).state) is False  # which closes its epoch
    assert same(event.state, fit(training(), batches(4), num_batches=3).state)


def test_an_error_in_a_step_is_told_with_the_state_before_it():
    tr, hearing = training(), Hearing()
    shapes = {"x": torch.zeros(8, 3, dtype=torch.float64), "y": torch.zeros(8, 4, dtype=torch.float64)}
    with pytest.raises(RuntimeError):
        fit(tr, [*batches(2), shapes], num_epochs=1, listeners=[hearing])
    assert same(hearing.failures[0].state, fit(tr, batches(3), num_batches=2).state)


def test_an_error_in_validation_leaves_the_state_before_its_batch_so_that_resuming_makes_up_for_it():
    tr, data, hearing = plateau_training(), batches(4), Hearing()
    good = ps.Validation(batches(1), every_n_steps=2)
    with pytest.raises(RuntimeError, match="in user code"):
        fit(tr, data, num_epochs=1, validation=ps.Validation(batches(1), every_n_steps=2, batch_callback=explode), listeners=[hearing])
    (event,) = hearing.failures
    assert event.batch_count == 1
    resumed = fit(tr, data, state=event.state, num_epochs=1, validation=good).state
    assert same(resumed, fit(tr, data, num_epochs=1, validation=good).state)


def plateau_training():
    return training(optimizer=ps.chain(ps.sgd(0.0), ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation")))


def explode(**kwargs):
    raise RuntimeError("in user code")


@pytest.mark.parametrize("stage", [ps.Stage.AFTER_BATCH, ps.Stage.AFTER_VALIDATION])
def test_an_error_in_another_listener_is_told_with_the_state_of_its_batch(stage):
    hearing = Hearing()
    validation = ps.Validation(batches(1), every_n_steps=2)
    with pytest.raises(RuntimeError, match="in user code"):
        fit(training(), batches(4), num_epochs=1, validation=validation, listeners=[fail_at(2, stage), hearing])
    assert [event.batch_count for event in hearing.failures] == [2]


def test_a_state_whose_memory_was_given_away_is_not_told():
    tr, hearing = training(), Hearing()
    compiled = ps.compile(tr.step, donate=True, backend="eager")
    validation = ps.Validation(batches(1), every_n_steps=2, batch_callback=explode)
    with pytest.raises(RuntimeError, match="in user code"):
        fit(tr, batches(4), num_epochs=1, validation=validation, step=compiled, listeners=[hearing])
    assert [event.batch_count for event in hearing.failures] == [2]  # the state before the batch is gone, the one after it is not


class Clumsy:
    """Fails when told of an error."""

    hears_errors = True

    def __call__(self, event):
        if event.error is not None:
            raise OSError("the disk is full")


def test_listeners_that_did_not_ask_hear_nothing_and_one_that_fails_then_leaves_a_note():
    heard = []
    listeners = [Clumsy(), lambda event: heard.append(event.stage.name), fail_at(1)]
    with pytest.raises(RuntimeError, match="in user code") as caught:
        fit(training(), batches(2), num_epochs=1, listeners=listeners)
    assert "AFTER_TRAINING" not in heard
    assert caught.value.__notes__ == ["besides, Clumsy failed when told of this: OSError: the disk is full"]


def test_errors_before_the_first_batch_are_told_too():
    hearing = Hearing()
    with pytest.raises(DataError):
        fit(training(), [], num_epochs=1, listeners=[hearing])
    assert [event.batch_count for event in hearing.failures] == [0]


def test_an_event_knows_whether_the_target_was_reached():
    reached = []

    def listen(event):
        if event.stage is ps.Stage.AFTER_TRAINING:
            reached.append(event.target_reached)

    fit(training(), batches(2), num_batches=2, listeners=[listen])
    fit(training(), batches(2), num_steps=3, listeners=[listen])
    fit(training(), batches(2), num_epochs=3, listeners=[listen, lambda event: ps.Stop("asked") if event.batch_count == 3 else None])
    fit(training(), batches(2), time_budget=1e-9, listeners=[listen])
    assert reached == [True, True, False, False]
