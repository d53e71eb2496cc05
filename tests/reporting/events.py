"""Events made by hand, and listeners that end a run."""

import torch

import purestep as ps
from purestep.core.event import Event, Stop
from purestep.core.hook import Stage
from purestep.core.state import zero_counters

STATE = ps.TrainState({"w": torch.zeros(1)}, {}, {}, {}, zero_counters(), torch.zeros((), dtype=torch.int64))


def event(stage=Stage.AFTER_BATCH, batch=1, epoch=0, metrics=None, validation=None, target=None, data=None, num_batches=None, **more):
    """A moment of a run of epochs without end."""
    counters = ps.Counters(*(torch.tensor(count) for count in (batch, batch, batch, epoch, batch)))
    state = ps.TrainState(STATE.params, {}, {}, {}, counters, STATE.seed)
    return Event(
        stage=stage,
        state=state,
        batch_count=batch,
        epoch_count=epoch,
        epoch_step_count=batch,
        step_bound=batch,
        metrics={} if metrics is None else metrics,
        validation=validation,
        num_batches=num_batches,
        target={} if target is None else target,
        batch=data,
        **more,
    )


class PowerCut(Exception):
    """The end of a process."""


def cut_power(after):
    """A listener that ends the process after a batch."""

    def listener(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == after:
            raise PowerCut

    return listener


def keep_states(states):
    """A listener that keeps the state after every batch by its number, as a checkpoint would."""

    def listener(event):
        if event.stage is Stage.AFTER_BATCH:
            states[event.batch_count] = event.state

    return listener


def ask_to_stop(after):
    """A listener that asks for the end after a batch."""

    def listener(event):
        return Stop("asked") if event.stage is Stage.AFTER_BATCH and event.batch_count == after else None

    return listener
