"""Random numbers in a captured step: anew at each step, and the same bits in every form of it."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purestep as ps
from tests.examples_of_models import seeded, stacked, training

FORMS = {
    "uncaptured": lambda step: step,
    "recorded": lambda step: ps.compile(step, backend="eager", on_recompile="error"),
    "donated": lambda step: ps.compile(step, backend="eager", donate=True, on_recompile="error"),
    "functionalized": lambda step: ps.compile(step, backend="aot_eager", on_recompile="error"),
    "dynamo": lambda step: ps.compile(step, backend="aot_eager", capture="dynamo", on_recompile="error"),
    "compiled": lambda step: ps.compile(step, on_recompile="error"),
}
CAPTURED = [pytest.param(form, marks=[pytest.mark.slow] if form == "compiled" else []) for form in FORMS]


class Dropped(nn.Module):
    """Dropout of the parameters, of whose sum the gradient is the mask: 2 where kept, else 0, in whole numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.dropout(self.weight, 0.5, self.training) + x


def dropping():
    return training(
        seeded(Dropped), ps.sgd(1.0), forward=lambda model, batch: model(batch), loss=lambda prediction, batch: prediction.sum()
    )


def masks(step, state, count=3):
    """What each of so many steps on one batch has kept."""
    found, batch = [], torch.zeros((), dtype=torch.float64)
    for _ in range(count):
        before = state.params["weight"].clone()
        state, _ = step(state, batch)
        found.append((before - state.params["weight"]).tolist())
    return found


@pytest.mark.parametrize("form", CAPTURED)
def test_masks_are_drawn_anew_at_each_step_and_have_the_bits_of_the_eager_step(form):
    torch._dynamo.reset()
    tr = dropping()
    found = masks(FORMS[form](tr.step), tr.init())
    assert found == masks(tr.step, tr.init())
    assert found[0] != found[1] != found[2] != found[0]
    assert {kept for mask in found for kept in mask} == {0.0, 2.0}


@pytest.mark.parametrize("form", [form for form in CAPTURED if form != "dynamo"])
def test_members_of_a_mapped_step_have_the_masks_that_they_have_alone(form):
    tr = dropping()
    found = masks(FORMS[form](torch.func.vmap(tr.step, in_dims=(0, None))), stacked([tr.init(0), tr.init(1)]))
    alone = [masks(tr.step, tr.init(seed)) for seed in (0, 1)]
    assert found == [list(step) for step in zip(*alone, strict=True)]
    assert alone[0] != alone[1]


def test_a_seed_or_a_counter_put_into_the_state_by_hand_draws_from_the_graph_that_is_there():
    tr = dropping()
    step, state = FORMS["recorded"](tr.step), tr.init()
    first, second, _ = masks(step, state)
    other = dataclasses.replace(state, seed=tr.init(7).seed)
    assert masks(step, other)[0] == masks(tr.step, tr.init(7))[0] != first
    later = dataclasses.replace(state, counters=tr.step(state, torch.zeros((), dtype=torch.float64))[0].counters)
    assert masks(step, later)[0] == second


def test_a_captured_step_touches_no_global_generator(untouched_globals):
    tr = dropping()
    for form in ("recorded", "donated", "functionalized"):
        masks(FORMS[form](tr.step), tr.init(), count=1)


def test_what_is_drawn_outside_does_not_matter():
    tr = dropping()
    step, expected = FORMS["recorded"](tr.step), masks(tr.step, tr.init())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        assert masks(step, tr.init()) == expected
        torch.rand(3)
        assert masks(step, tr.init()) == expected
