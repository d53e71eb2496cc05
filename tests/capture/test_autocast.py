"""Autocast inside the step and around it: the graph has the dtypes of the eager step, in and out of regions that switch it off."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.errors import RecompileError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import batches, run, seeded, training, values


def bfloat16(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


class Mixed(nn.Module):
    """A product under whatever is around, then one in full precision, then one in bfloat16."""

    def __init__(self):
        super().__init__()
        self.outer, self.exact, self.rounded = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.outer(x)
        with bfloat16(enabled=False):
            full = self.exact(hidden.float().tanh())
        with bfloat16():
            half = self.rounded(full)
        return {"around": hidden, "full": full, "half": half, "y": half.float()}


def single(batch):
    return ps.tree.cast(batch, torch.float32)


def mixed(**changes):
    model = seeded(Mixed).float()
    return training(model, ps.sgd(0.1), forward=lambda model, batch: model(batch["x"]), **changes)


DATA = [single(batch) for batch in batches(3)]
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_inside_the_step_has_the_eager_dtypes_and_numbers(backend, precision):
    tr = mixed(precision=precision)
    step, evaluate = (ps.compile(fn, backend=backend, on_recompile="error") for fn in (tr.step, tr.evaluate))
    found, expected = evaluate(tr.init(), DATA[0])[0], tr.evaluate(tr.init(), DATA[0])[0]
    assert {name: x.dtype for name, x in found.items()} == {name: x.dtype for name, x in expected.items()}
    assert (found["full"].dtype, found["half"].dtype) == (torch.float32, torch.bfloat16)
    # kernels that are fused round less often to bfloat16, whose unit roundoff is 4e-3
    assert_trees_close(values(run(step, tr.init(), DATA)), values(run(tr.step, tr.init(), DATA)), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_around_the_call_does_not_reach_where_the_step_switches_it_off(backend):
    tr, state = mixed(), mixed().init()
    evaluate = ps.compile(tr.evaluate, backend=backend, on_recompile="error")
    with bfloat16():
        found, expected = evaluate(state, DATA[0])[0], tr.evaluate(state, DATA[0])[0]
    assert {name: x.dtype for name, x in found.items()} == {name: x.dtype for name, x in expected.items()}
    assert (found["around"].dtype, found["full"].dtype) == (torch.bfloat16, torch.float32)
    # of the same rounded input; a product in bfloat16 would be off by 4e-3
    full = torch.nn.functional.linear(found["around"].float().tanh(), state.params["exact.weight"], state.params["exact.bias"])
    torch.testing.assert_close(found["full"], full, rtol=1e-6, atol=1e-6)


def test_a_recorded_step_under_autocast_has_the_bits_of_the_eager_one():
    tr = mixed()
    with bfloat16():
        found = run(ps.compile(tr.step, backend="eager", on_recompile="error"), tr.init(), DATA)
        expected = run(tr.step, tr.init(), DATA)
    assert_trees_equal(found, expected)


@pytest.mark.parametrize("donate", [False, True])
def test_autocast_around_the_call_is_a_part_of_the_key_and_the_first_graph_is_used_again(donate):
    tr = mixed()
    step, expected, state, same = ps.compile(tr.step, backend="eager", donate=donate, on_recompile="ignore"), [], tr.init(), tr.init()
    for number, enabled in enumerate([False, True, False, True]):
        with bfloat16(enabled):
            state, metrics = step(state, DATA[number % 3])
            same, expected = tr.step(same, DATA[number % 3])
        assert_trees_equal((state.params, metrics), (same.params, expected))
    assert len(step.explain()) == 2
    with torch.autocast("cpu", torch.float16):
        step(state, DATA[0])
    assert len(step.explain()) == 3


def test_autocast_that_was_not_expected_is_said():
    step = ps.compile(lambda state, x: (state, x @ x), backend="eager", on_recompile="error")
    step(torch.ones(1), torch.ones(2, 2))
    with bfloat16(), pytest.raises(RecompileError, match="autocast"):
        step(torch.ones(1), torch.ones(2, 2))


def test_a_number_read_under_autocast_is_guarded_as_it_was_read():
    def step(state, x):
        with bfloat16(enabled=False):
            return state, 1.0 if (x @ x).item() > 2.0 else 0.0  # in bfloat16 it would be 2

    compiled = ps.compile(step, backend="eager", on_recompile="error")
    with bfloat16():
        assert [compiled(torch.ones(1), torch.tensor([1.0, 1.0 + 2**-12]))[1] for _ in range(2)] == [1.0, 1.0]


def test_a_graph_captured_without_autocast_is_not_cast_when_it_is_called_inside():
    step = ps.compile(lambda state, x: (state, x @ x), backend="eager", on_recompile="ignore")
    x = torch.full((2, 2), 1.0 + 2**-12)
    expected = step(torch.ones(1), x)[1]
    with bfloat16():
        assert step(torch.ones(1), x)[1].dtype == torch.bfloat16
    assert step(torch.ones(1), x)[1].equal(expected)
