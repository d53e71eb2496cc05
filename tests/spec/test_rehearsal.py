"""The ladder of a dry run: each rung sees what it is for, and the first that fails is the last."""

import os

import pytest
import torch

from purestep.core.transform import stateless
from purestep.spec.building import build
from purestep.spec.reading import check_text
from purestep.spec.rehearsal import rehearse
from purestep.spec.rung import Failure, NotTried
from tests.spec.examples import changed, text_of

RUNGS = ["forward", "update", "device", "compiled", "checkpoint", "steps", "validation", "ranks"]


def rehearsal(compiled=None, change=lambda pieces: pieces, ranks=None, num_batches=1, **values):
    spec = check_text(text_of(changed(**values))).spec
    pieces = change(build(spec))
    step = compiled(pieces) if compiled else None
    return list(rehearse(spec, pieces, "cpu", step, ranks=ranks, num_batches=num_batches))


def test_a_good_run_climbs_the_whole_ladder():
    rungs = rehearsal(compiled=lambda pieces: pieces.training.step)
    assert [rung.name for rung in rungs] == RUNGS
    assert {rung.name for rung in rungs if rung.outcome == "not needed"} == {"device", "steps", "ranks"}
    assert not any(rung.outcome == "failed" for rung in rungs)


def test_what_the_run_does_not_do_is_not_needed_and_says_why():
    rungs = {rung.name: rung for rung in rehearsal(**{"validation": None, "dataset/validation_split": None})}
    assert "does not validate" in rungs["validation"].words
    assert "does not compile" in rungs["compiled"].words


def test_a_warm_up_from_zero_is_no_failure():
    update = next(rung for rung in rehearsal() if rung.name == "update")
    assert "parameters moved in 2 updates" in update.words


def test_a_run_that_never_moves_a_parameter_fails():
    still = stateless(lambda updates, params: {name: torch.zeros_like(update) for name, update in updates.items()})
    rungs = rehearsal(change=lambda pieces: pieces._replace(training=pieces.training.replace(optimizer=still)))
    assert (rungs[-1].name, rungs[-1].outcome) == ("update", "failed")
    assert "no parameter moved" in rungs[-1].words


def test_weights_that_are_not_finite_are_found_in_the_forward_pass():
    def spoil(pieces):
        next(iter(pieces.training.models.parameters())).data.fill_(torch.nan)
        return pieces

    rungs = rehearsal(change=spoil)
    assert (len(rungs), rungs[0].outcome) == (1, "failed")
    assert "not finite" in rungs[0].words


def test_a_compiled_step_that_computes_something_else_is_found():
    def wrong(pieces):
        def step(state, batch):
            state, metrics = pieces.training.step(state, batch)
            return state, {**metrics, "loss/total": metrics["loss/total"] * 1.01}

        return step

    rungs = rehearsal(compiled=wrong)
    assert (rungs[-1].name, rungs[-1].outcome) == ("compiled", "failed")
    assert "no rounding" in rungs[-1].words


def test_a_rehearsal_writes_nothing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rehearsal()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("every", [2, 5])
def test_updates_that_are_held_back_are_no_failure(every):
    rungs = rehearsal(**{"strategy/update/0": {"kind": "accumulate", "every": every}})
    assert "failed" not in {rung.outcome for rung in rungs}


def test_a_later_batch_whose_loss_is_not_finite_fails_where_several_are_asked_for():
    def spoilt(pieces):
        def step(state, batch):
            new, metrics = pieces.training.step(state, batch)
            third = int(state.counters.batch_count) == 2
            return new, {**metrics, "loss/total": metrics["loss/total"] * (torch.nan if third else 1.0)}

        return step

    rungs = rehearsal(compiled=spoilt, num_batches=4)
    assert (rungs[-1].name, rungs[-1].outcome, rungs[-1].words) == ("steps", "failed", "the loss of batch 3 of 4 is nan")
    assert rehearsal(compiled=spoilt, num_batches=2)[-1].name == "ranks"


def test_a_gate_that_never_opens_fails_where_several_batches_are_asked_for():
    gate = {"kind": "skip_large_updates", "max_squared_norm": 1e-30}
    rungs = rehearsal(num_batches=40, **{"strategy/update/0": gate, "dataset/batch_size": 40})
    assert (rungs[-1].name, rungs[-1].outcome) == ("steps", "failed")
    assert "no update" in rungs[-1].words


def test_ranks_are_tried_where_the_run_has_several_and_what_they_find_is_told():
    def found():
        raise Failure("ranks differ")

    def too_few():
        raise NotTried("two ranks need 3 frames")

    ends = [rehearsal(ranks=attempt)[-1][:3] for attempt in (lambda: "alike", found, too_few)]
    assert ends == [("ranks", "passed", "alike"), ("ranks", "failed", "ranks differ"), ("ranks", "not tried", "two ranks need 3 frames")]
