"""Decisions by values: guarded where the step is recorded, else an error that names the line and says what to write instead."""

import random

import numpy as np
import pytest
import torch

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, stacked, training


def captured(step, **options):
    return ps.compile(step, backend="eager", on_recompile="ignore", **options)


# --- what is guarded ------------------------------------------------------------------------------------------------


def double_if_positive(loss):
    if loss > 0:
        loss = 2.0 * loss
    return loss


def halve_while_large(x):
    while x.abs().sum() > 4.0:
        x = 0.5 * x
    return x


DECISIONS = {
    "if": lambda x: double_if_positive(x.sum()),
    "while": halve_while_large,
    "and": lambda x: 2.0 * x if x[0] > 0 and x[1] > 0 else x,
    "any": lambda x: 2.0 * x if any(x > 1.5) else x,
    "in": lambda x: 2.0 * x if 2.0 in x else x,
    "equal": lambda x: 2.0 * x if torch.equal(x, torch.ones(3)) else x,
    "equal of shapes": lambda x: 2.0 * x if torch.equal(x, torch.ones(2)) else x,
    "allclose": lambda x: 2.0 * x if torch.allclose(x, torch.ones(3), atol=1e-3) else x,
    "maximum": lambda x: max(x[0], x[1]) * x,
    "index": lambda x: [x, 2.0 * x, 3.0 * x][int(x.argmax())],
    "number": lambda x: x * float(x.sum()),
    "text": lambda x: x * len(f"{x.sum()}"),
    "list": lambda x: torch.tensor([float(part) for part in x]),
    "split": lambda x: torch.split(x, [int((x > 0).sum()), 3 - int((x > 0).sum())])[0],
}
INPUTS = ([1.0, 2.0, -4.0], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0], [-1.0, -2.0, -2.0], [1.0, 2.0, -4.0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_a_decision_by_values_is_taken_anew_at_each_call(decide, backend):
    step = ps.compile(lambda state, x: (state, decide(x)), backend=backend, on_recompile="ignore")
    for x in map(torch.tensor, INPUTS):
        assert_trees_equal(step(torch.ones(1), x)[1], decide(x))


@pytest.mark.parametrize("donate", [False, True])
def test_a_decision_by_the_loss_goes_into_loss_and_gradient_of_each_call(donate):
    optimizer = ps.sgd(1.0)
    step = ps.make_step(lambda w, x: double_if_positive((w * x).sum()), optimizer)
    state, compiled = ps.init_state(torch.ones(()), optimizer), captured(step, donate=donate)
    state, metrics = run(compiled, state, [torch.tensor(-3.0), torch.tensor(0.25)])
    assert metrics["loss/total"].item() == 2.0  # w is 4 after the first step, whose gradient is -3: 2 * 4 * 0.25
    assert state.params.item() == 3.5  # and the gradient 2 * 0.25
    assert len(compiled.explain()) == 2
    assert "if loss > 0:" in compiled.explain()[0].host_reads[0]


def test_a_guard_on_the_state_changes_nothing_in_a_state_that_is_given_away():
    def step(state, batch):
        return {"count": state["count"] + 1, "w": state["w"] + (batch if state["count"].item() % 2 == 0 else -batch)}, {}

    compiled, state, found = captured(step, donate=True), {"count": torch.zeros((), dtype=torch.int64), "w": torch.zeros(())}, []
    for _ in range(4):
        state, _ = compiled(state, torch.ones(()))
        found.append((state["count"].item(), state["w"].item()))
    assert found == [(1, 1.0), (2, 0.0), (3, 1.0), (4, 0.0)]


def test_a_number_is_guarded_as_it_was_when_it_was_read():
    def step(state, x):
        total = x.sum()
        positive = total.item() > 0
        total.add_(10.0)
        return state, total if positive else -total

    compiled = captured(step)
    assert [compiled(torch.ones(1), torch.full((2,), x))[1].item() for x in (1.0, -1.0, 1.0)] == [12.0, -8.0, 12.0]
    assert len(compiled.explain()) == 2


# --- what is refused ------------------------------------------------------------------------------------------------


def linear(decide):
    optimizer = ps.sgd(0.1)
    return ps.make_step(lambda w, x: decide((w * x).sum()), optimizer), ps.init_state(torch.ones(()), optimizer)


def by_cond(loss):
    return torch.cond(loss > 0, lambda loss: 2.0 * loss, lambda loss: 3.0 * loss, (loss,))


WHERE = r"torch\.where\(condition, a, b\)"


def test_a_decision_in_a_mapped_step_is_an_error_that_names_the_line_and_what_to_write():
    step, state = linear(double_if_positive)
    mapped = captured(torch.func.vmap(step, in_dims=(0, None)))
    with pytest.raises(CaptureError, match=rf"test_control_flow\.py:\d+ \(if loss > 0:\).*{WHERE}"):
        mapped(stacked([state, state]), torch.ones(2))


def test_a_decision_for_a_range_of_sizes_is_an_error_that_names_the_line_and_what_to_write():
    step, state = linear(double_if_positive)
    with pytest.raises(CaptureError, match=r"test_control_flow\.py:\d+ \(if loss > 0:\).*compute with the tensor instead"):
        captured(step, dynamic={"*": {0: ("n", 2, 9)}})(state, torch.ones(3))


def test_a_decision_is_an_error_for_dynamo_that_names_the_line_and_what_to_write():
    torch._dynamo.reset()
    step, state = linear(double_if_positive)
    with pytest.raises(CaptureError, match=rf"(?s){WHERE}.*test_control_flow\.py\", line \d+.*if loss > 0:"):
        captured(step, capture="dynamo")(state, torch.ones(3))


def test_conditions_of_torch_are_an_error_that_names_the_line_and_what_to_write():
    step, state = linear(by_cond)
    with pytest.raises(CaptureError, match=rf"test_control_flow\.py:\d+ \(return torch\.cond.*{WHERE}"):
        captured(step)(state, torch.ones(3))


def test_a_decision_by_where_is_captured_traced_mapped_by_dynamo_and_for_a_range_of_sizes():
    torch._dynamo.reset()
    step, state = linear(lambda loss: torch.where(loss > 0, 2.0 * loss, loss))
    forms = [captured(step), captured(step, dynamic={"*": {0: ("n", 2, 9)}}), captured(step, capture="dynamo")]
    mapped = captured(torch.func.vmap(step, in_dims=(0, None)))
    for x in (torch.ones(3), -torch.ones(3)):
        expected = double_if_positive(x.sum())
        assert [form(state, x)[1]["loss/total"].item() for form in forms] == [expected.item()] * 3
        assert mapped(stacked([state, state]), x)[1]["loss/total"].tolist() == [expected.item()] * 2


def put_data(x):
    y = x.clone()
    y.data = 3.0 * x
    return y


HIDDEN = {
    "array": lambda x: x * np.asarray(x).sum(),
    "numpy": lambda x: x * float(x.numpy().sum()),
    "other library": lambda x: torch.from_dlpack(x) * 2.0,
    "data": put_data,
}


@pytest.mark.parametrize("function", HIDDEN.values(), ids=HIDDEN)
def test_what_goes_round_the_operations_is_refused_with_the_line(function):
    with pytest.raises(CaptureError, match=r"at .*test_control_flow\.py:\d+ .*would freeze"):
        captured(lambda state, x: (state, function(x)))(torch.ones(1), torch.ones(3))


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
def test_numbers_from_other_generators_are_refused(draw):
    def forward(model, batch):
        return {"y": model(batch["x"]) * (2.0 if draw() < 0.5 else 1.0)}

    tr = training(seeded(Plain), forward=forward)
    with pytest.raises(CaptureError, match=r"global generator.*torch\.rand\(\(\)\)"):
        captured(tr.step)(tr.init(), batches(1)[0])


def test_a_layer_left_out_by_keyed_chance_is_left_out_by_the_same_chance_captured():
    def forward(model, batch):
        return {"y": model(batch["x"]) if torch.rand(()) < 0.5 else 0.0 * model(batch["x"]) + batch["x"]}

    tr, data = training(seeded(Plain), forward=forward), batches(6)
    step = captured(tr.step)
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert len(step.explain()) == 2
