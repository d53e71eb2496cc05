"""The eighteen stages of a run, recorded in the order of the page that documents them."""

import pytest

import purestep as ps
from purestep.core.hook import MAY_REPLACE
from purestep.loop import fit
from tests.examples_of_models import batches, training

DOCUMENTED = [
    *("SETUP", "BEFORE_TRAINING", "BEFORE_EPOCH"),
    *("BEFORE_BATCH", "BEFORE_FORWARD", "AFTER_FORWARD", "BEFORE_LOSS", "AFTER_LOSS", "BEFORE_BACKWARD", "DO_BACKWARD", "AFTER_BACKWARD"),
    *("BEFORE_OPTIMIZER_STEP", "DO_OPTIMIZER_STEP", "AFTER_OPTIMIZER_STEP", "AFTER_BATCH"),
    *("AFTER_VALIDATION", "AFTER_EPOCH", "AFTER_TRAINING"),
]


def recording_hook(log):
    def update(state, ctx):
        log.append(ctx.stage.name)
        return state, ctx

    return ps.Hook("recorder", frozenset(MAY_REPLACE), lambda state: {}, update)


def recording_transform(log):
    """Stands where the chain owns a stage: before the backward pass, and at the update."""

    def update(updates, state, params=None, **extra):
        log.append("DO_OPTIMIZER_STEP")
        return updates, state

    def scale_loss(loss, state):
        if loss.requires_grad:  # not when the step asks for the factor alone, to take it out of gradients
            log.append("DO_BACKWARD")
        return loss

    return ps.GradientTransform(lambda params: {}, update, "recorder", frozenset(), scale_loss)


def recording_listener(log):
    loop_only = {stage.name for stage in ps.Stage} - {stage.name for stage in MAY_REPLACE}
    return lambda event: log.append(event.stage.name) if event.stage.name in loop_only else None


def record(num_epochs, data, **validation):
    log = []
    tr = training(optimizer=ps.chain(recording_transform(log), ps.sgd(0.1)), hooks=[recording_hook(log)])
    fit(tr, data, num_epochs=num_epochs, validation=ps.Validation(batches(1), **validation), listeners=[recording_listener(log)])
    return log


def test_the_eighteen_stages_come_in_the_documented_order():
    assert [stage.name for stage in ps.Stage] == DOCUMENTED
    assert record(1, batches(1), every_n_steps=1) == DOCUMENTED


def test_the_stages_of_a_batch_repeat_inside_an_epoch_and_those_of_an_epoch_inside_a_run():
    batch = DOCUMENTED[3:15]
    epoch = ["BEFORE_EPOCH", *batch, *batch, "AFTER_VALIDATION", "AFTER_EPOCH"]
    assert record(2, batches(2), every_n_epochs=1) == ["SETUP", "BEFORE_TRAINING", *epoch, *epoch, "AFTER_TRAINING"]


def test_a_listener_hears_of_a_batch_after_the_validation_there():
    log = []
    validation = ps.Validation(batches(1), every_n_steps=2)
    fit(training(), batches(2), num_epochs=1, validation=validation, listeners=[lambda event: log.append(event.stage.name)])
    assert log[-4:] == ["AFTER_VALIDATION", "AFTER_BATCH", "AFTER_EPOCH", "AFTER_TRAINING"]


@pytest.mark.parametrize(
    ("target", "last"),
    [
        ({"num_steps": 3}, ["AFTER_VALIDATION", "AFTER_BATCH", "AFTER_TRAINING"]),
        ({"num_batches": 3}, ["AFTER_VALIDATION", "AFTER_BATCH", "AFTER_TRAINING"]),
        ({"num_steps": 4}, ["AFTER_BATCH", "AFTER_VALIDATION", "AFTER_EPOCH", "AFTER_TRAINING"]),
        ({"num_epochs": 2}, ["AFTER_BATCH", "AFTER_VALIDATION", "AFTER_EPOCH", "AFTER_TRAINING"]),
    ],
)
def test_a_run_that_ends_at_no_cadence_is_validated_before_its_last_checkpoint_could_be_written(target, last):
    log = []
    validation = ps.Validation(batches(1), every_n_steps=10)
    fit(training(), batches(2), validation=validation, listeners=[lambda event: log.append((event.stage.name, event.validation))], **target)
    assert [name for name, _ in log[-len(last) :]] == last
    assert [name for name, _ in log].count("AFTER_VALIDATION") == 1
    assert log[-2][1] is not None  # what a periodic checkpoint is given


def test_the_state_that_listeners_see_at_a_batch_has_heard_of_the_validation():
    tr = training(optimizer=ps.chain(ps.sgd(0.0), ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation")))
    scales = []

    def listen(event):
        if event.stage is ps.Stage.AFTER_BATCH:
            scales.append(float(event.state.opt_state["reduce_on_plateau"].scale))

    fit(tr, batches(3), num_epochs=1, validation=ps.Validation(batches(1), every_n_steps=1), listeners=[listen])
    assert scales == [1.0, 0.5, 0.25]  # a rate of 0 never improves after the first value
