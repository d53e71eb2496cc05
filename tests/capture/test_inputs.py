"""What one graph must take as its input: rates, schedules, buffers, tensors closed over; and what is a part of its key: plain values."""

import dataclasses
import enum

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purestep as ps
from purestep.errors import CaptureError, RecompileError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, training


def captured(step, **options):
    return ps.compile(step, backend="eager", **options)


# --- rates and schedules --------------------------------------------------------------------------------------------


def descent(optimizer):
    """A step whose gradient is the batch, and its first state: parameters move by minus the rate times the batch."""
    return ps.make_step(lambda w, x: (w * x).sum(), optimizer), ps.init_state(torch.zeros((), dtype=torch.float64), optimizer)


@pytest.mark.parametrize("donate", [False, True])
def test_a_schedule_moves_with_the_counter_of_the_state(donate):
    step, state = descent(ps.sgd(ps.schedules.linear(1.0, 0.0, 4)))
    compiled, one, found = captured(step, donate=donate, on_recompile="error"), torch.ones((), dtype=torch.float64), []
    for _ in range(5):
        state, _ = compiled(state, one)
        found.append(state.params.item())
    assert found == [-1.0, -1.75, -2.25, -2.5, -2.5]  # rates 1, 3/4, 1/2, 1/4, 0


def test_a_counter_set_by_hand_moves_the_schedule_of_the_graph_that_is_there():
    step, state = descent(ps.sgd(ps.schedules.linear(1.0, 0.0, 4)))
    compiled, one = captured(step, on_recompile="error"), torch.ones((), dtype=torch.float64)
    compiled(state, one)
    later, _ = run(step, state, [0.0 * one] * 3)
    assert compiled(later, one)[0].params.item() == -0.25


@pytest.mark.parametrize("donate", [False, True])
def test_a_rate_set_by_hand_between_calls_is_the_rate_of_the_next(donate):
    step, state = descent(ps.sgd(1.0))
    compiled, one, found = captured(step, donate=donate, on_recompile="error"), torch.ones((), dtype=torch.float64), []
    for rate in (1.0, 0.5, 8.0):
        state = dataclasses.replace(state, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=rate))
        state, _ = compiled(state, one)
        found.append(state.params.item())
    assert found == [-1.0, -1.5, -9.5]


# --- plain values ---------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    HALF = 0.5
    TWICE = 2.0


PLAIN = {
    "int": (2, 3),
    "int and float": (2, 2.5),
    "int and bool": (1, True),
    "float": (0.1, 0.1 + 2**-56),
    "sign of zero": (0.0, -0.0),
    "complex": (1.0 + 2.0j, 1.0 - 2.0j),
    "sign of a complex zero": (complex(1.0, 0.0), complex(1.0, -0.0)),
    "text": ("add", "multiply"),
    "enum": (Mode.HALF, Mode.TWICE),
    "dtype": (torch.float32, torch.float64),
    "none": (None, 2),
}


@pytest.mark.parametrize("values", PLAIN.values(), ids=PLAIN)
def test_a_plain_value_of_the_batch_is_a_part_of_the_key(values):
    step = captured(lambda state, batch: (state, {"seen": repr(batch["value"]), "sum": batch["x"].sum()}), on_recompile="ignore")
    seen = [step(torch.ones(()), {"x": torch.ones(2), "value": value})[1]["seen"] for value in values * 2]
    assert seen == [*map(repr, values)] * 2
    assert len(step.explain()) == 2


def test_a_value_that_is_not_a_number_is_captured_once():
    step = captured(lambda state, batch: (state * batch, {}), on_recompile="error")
    for value in (float("nan"), float("nan")):
        assert step(torch.ones(()), value)[0].isnan()
    step = captured(lambda state, batch: (state * batch, {}), on_recompile="error")
    for value in (complex("nan"), complex("nan")):
        assert step(torch.ones(()), value)[0].isnan()


def test_a_number_that_the_step_computes_with_is_that_of_the_call():
    def scaled(model, batch):
        return {"y": batch["scale"] * model(batch["x"])}

    tr, (batch,) = training(seeded(Plain), forward=scaled), batches(1)
    step, state = captured(tr.step, on_recompile="ignore"), tr.init()
    for scale in (2, 3.0, 2):
        assert_trees_equal(step(state, {**batch, "scale": scale}), tr.step(state, {**batch, "scale": scale}))
    assert len(step.explain()) == 2


# --- buffers and tensors closed over --------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4, momentum=0.25), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.norm(x))


@pytest.mark.parametrize("donate", [False, True])
def test_statistics_of_batchnorm_move_with_each_call(donate):
    tr, data = training(seeded(Normed), ps.sgd(0.1)), batches(3)
    state, _ = run(captured(tr.step, donate=donate, on_recompile="error"), tr.init(), data)
    expected = torch.zeros(4, dtype=torch.float64)
    for batch in data:
        expected = 0.75 * expected + 0.25 * batch["x"].mean(0)
    torch.testing.assert_close(state.buffers["norm.running_mean"], expected, rtol=1e-14, atol=1e-15)  # means sum in another order
    assert state.buffers["norm.num_batches_tracked"].item() == 3


def test_statistics_put_into_the_state_by_hand_are_those_of_the_next_evaluation():
    tr, (batch,) = training(seeded(Normed)), batches(1)
    state, evaluate = tr.init(), captured(tr.evaluate, on_recompile="error")
    evaluate(state, batch)
    moved = dataclasses.replace(state, buffers={**state.buffers, "norm.running_mean": torch.full((4,), 3.0, dtype=torch.float64)})
    assert_trees_equal(evaluate(moved, batch), tr.evaluate(moved, batch))


class Scaled(nn.Module):
    """Holds a table that is neither parameter nor buffer."""

    def __init__(self, table):
        super().__init__()
        self.table, self.out = table, nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x * self.table)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_tensor_closed_over_that_is_changed_in_place_is_seen_by_the_next_call(backend):
    table = torch.ones(4, dtype=torch.float64)
    tr, (batch,) = training(seeded(Plain), forward=lambda model, batch: {"y": model(batch["x"] * table)}), batches(1)
    step, state = ps.compile(tr.step, backend=backend, on_recompile="error"), tr.init()
    step(state, batch)
    table.mul_(3.0)
    # compiled kernels sum in another order
    ps.testing.assert_trees_close(step(state, batch), tr.step(state, batch), rtol=1e-12, atol=1e-12)


def test_a_tensor_that_a_module_keeps_is_copied_with_it():
    table = torch.ones(4, dtype=torch.float64)
    tr, (batch,) = training(seeded(Scaled, table)), batches(1)
    step, state = captured(tr.step), tr.init()
    expected = step(state, batch)
    table.mul_(3.0)
    assert_trees_equal(step(state, batch), expected)
    assert_trees_equal(tr.step(state, batch), expected)


def test_a_parameter_that_the_step_closes_over_is_an_input_too():
    teacher, optimizer = seeded(Plain), ps.sgd(0.1)
    step = ps.make_step(lambda w, batch: (batch["x"] @ w - teacher(batch["x"])).square().mean(), optimizer)
    compiled, state, (batch,) = (
        captured(step, on_recompile="error"),
        ps.init_state(torch.zeros(4, 4, dtype=torch.float64), optimizer),
        batches(1),
    )
    compiled(state, batch)
    with torch.no_grad():
        teacher.out.weight.mul_(2.0)
    assert_trees_equal(compiled(state, batch), step(state, batch))


WRITES = {
    "in place": lambda kept: kept.add_(1.0),
    "item": lambda kept: kept.__setitem__(0, 5.0),
    "view": lambda kept: kept[1:].mul_(2.0),
    "detached": lambda kept: kept.detach().mul_(2.0),
    "list": lambda kept: torch._foreach_add_([kept], 1.0),
    "out": lambda kept: torch.add(torch.ones(2), torch.ones(2), out=kept),
    "statistics": lambda kept: F.batch_norm(torch.arange(8.0).view(4, 2), kept, torch.ones(2), training=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dynamic", [None, {"*": {0: ("n", 2, 9)}}], ids=["fixed", "range of sizes"])
def test_a_step_that_writes_into_a_tensor_it_closes_over_is_refused_before_it_does(write, dynamic):
    kept = torch.tensor([1.0, 2.0])

    def step(state, batch):
        write(kept)
        return state + batch.sum() * kept, {}

    with pytest.raises(CaptureError, match=r"closes over, at .*test_inputs\.py.*a buffer of a module"):
        captured(step, dynamic=dynamic)(torch.zeros(2), torch.ones(3))
    assert kept.tolist() == [1.0, 2.0]


def test_a_module_that_a_plain_step_closes_over_cannot_keep_statistics():
    model, optimizer = seeded(Normed), ps.sgd(0.1)
    step = ps.make_step(lambda w, batch: (w * model(batch["x"])).sum(), optimizer)
    with pytest.raises(CaptureError, match=r"closes over.*a buffer of a module"):
        captured(step)(ps.init_state(torch.zeros((), dtype=torch.float64), optimizer), batches(1)[0])
    assert model.norm.num_batches_tracked.item() == 0


def test_a_step_may_write_into_what_it_has_made_itself():
    def step(state, batch):
        made = torch.tensor([0.0, 1.0])
        made[0] = batch
        made.add_(torch.zeros(2).add_(1.0))
        return state + made, {}

    compiled = captured(step)
    for value in (1.0, 5.0, 1.0):
        assert compiled(torch.zeros(2), torch.tensor(value))[0].tolist() == [value + 1.0, 2.0]


# --- tied weights ---------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(self.encoder(x).tanh())


@pytest.mark.parametrize("options", [{}, {"donate": True}, {"donate": True, "storage": "flat"}], ids=["kept", "donated", "flat"])
def test_tied_weights_are_one_leaf_with_the_sum_of_both_gradients(options):
    model, data = seeded(Tied), batches(3)
    tr = training(model, ps.sgd(0.5))
    state, _ = run(captured(tr.step, on_recompile="error", **options), tr.init(), data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in data:
        optimizer.zero_grad()
        (model(batch["x"]) - batch["y"]).square().mean().backward()
        optimizer.step()
    assert list(state.params) == ["encoder.weight"]
    torch.testing.assert_close(state.params["encoder.weight"], model.encoder.weight.detach(), rtol=1e-13, atol=1e-14)  # fused otherwise


# --- what is around the call ----------------------------------------------------------------------------------------


def test_the_default_dtype_is_a_part_of_the_key():
    step = captured(lambda state, x: (state, {"value": torch.ones(()) * 3}), on_recompile="error")
    step(1, 1)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RecompileError, match="default dtype"):
            step(1, 1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_is_a_part_of_the_key():
    step = captured(lambda state, x: (state, {"value": torch.ones(2)}), on_recompile="ignore")
    assert step(1, 1)[1]["value"].device.type == "cpu"
    with torch.device("meta"):
        assert step(1, 1)[1]["value"].device.type == "meta"
