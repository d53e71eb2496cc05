import os
import signal

import pytest

import purestep as ps
from purestep.core.hook import Stage
from purestep.reporting import StopOnSignal


def send(number, after):
    """A listener that sends a signal to this process during a batch."""

    def listener(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == after:
            os.kill(os.getpid(), number)

    return listener


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_batch_it_came_in(training, batches, number):
    with StopOnSignal() as stop:
        result = ps.fit(training, batches, num_epochs=3, listeners=[send(number, after=7), stop])
    assert result.stop_reason == number.name
    assert int(result.state.counters.batch_count) == 7


def test_a_run_that_a_signal_ends_makes_no_final_validation_for_which_there_may_be_no_time(training, batches):
    seen = []
    validation = ps.Validation(batches, every_n_epochs=100)
    with StopOnSignal() as stop:
        listeners = [send(signal.SIGTERM, after=2), stop, lambda event: seen.append(event.stage)]
        ps.fit(training, batches, num_epochs=3, validation=validation, listeners=listeners)
    assert seen[-1] is Stage.AFTER_TRAINING
    assert Stage.AFTER_VALIDATION not in seen


def test_handlers_are_as_they_were_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopOnSignal():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_second_signal_does_what_it_always_did():
    with pytest.raises(KeyboardInterrupt), StopOnSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received is signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)


def test_one_that_is_not_open_is_refused_at_the_first_event(training, batches):
    with pytest.raises(RuntimeError, match="with StopOnSignal\\(\\) as stop:"):
        ps.fit(training, batches, num_epochs=1, listeners=[StopOnSignal()])
