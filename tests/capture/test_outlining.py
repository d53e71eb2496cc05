"""Code that serves many leaves: the same bits, only where it pays, and nothing that something else needs."""

import pytest
import torch

import purestep as ps
from purestep.capture import outlining
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import batches, poisoned, run, training


@pytest.fixture
def few_short_leaves_pay(monkeypatch):
    monkeypatch.setattr(outlining, "MIN_CALLS", 2)
    monkeypatch.setattr(outlining, "MIN_ELEMENTS", 1)


def donating(step, backend="eager"):
    return ps.compile(step, donate=True, on_recompile="error", backend=backend)


def clipped():
    return ps.chain(ps.clip_by_global_norm(0.5), ps.adamw(1e-2, weight_decay=0.1))


# six leaves; three of them have a gradient that is no sum of two, so that its norm needs nothing to be stored first
SHARED = {
    "adamw": (lambda: ps.adamw(1e-2, weight_decay=0.1), 9),
    "clipped": (clipped, 9),
    "gated": (lambda: ps.chain(ps.skip_nonfinite(), ps.adamw(1e-2)), 9),
    "momentum": (lambda: ps.sgd(0.1, momentum=0.9), 9),
    "lion": (lambda: ps.lion(1e-3), 9),
    "updates that are measured": (lambda: ps.lamb(1e-2), 0),
}


@pytest.mark.usefixtures("few_short_leaves_pay")
@pytest.mark.parametrize("name", SHARED)
def test_shared_code_gives_the_bits_of_the_eager_step(name):
    optimizer, shared_calls = SHARED[name]
    tr, data = training(optimizer=optimizer(), hooks=(ps.hooks.ema(0.9),)), batches(5)
    data[3] = poisoned(data[3]) if name == "gated" else data[3]
    step = donating(tr.step)
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert step.explain()[0].shared_calls == shared_calls


def test_a_small_step_keeps_code_of_its_own_for_each_leaf():
    tr = training()
    step = donating(tr.step)
    step(tr.init(), batches(1)[0])
    assert step.explain()[0].shared_calls == 0


@pytest.mark.usefixtures("few_short_leaves_pay")
@pytest.mark.slow
def test_compiled_shared_code_serves_leaves_of_different_shapes():
    tr, data = training(optimizer=clipped()), batches(4)
    step = donating(tr.step, "inductor")
    # kernels sum in another order; the bias before a normalisation has a gradient of rounding errors, which Adam enlarges
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)
    assert step.explain()[0].shared_calls == 9


def captured(step, *tensors):
    """Results of a donating call, what was in the memory of the state afterwards, and how often shared code was called."""
    compiled = donating(step)
    state = tuple(x.clone() for x in tensors)
    results = compiled(state)
    return results, state, compiled.explain()[0].shared_calls


A, B = torch.arange(1.0, 5.0), torch.arange(5.0, 9.0)


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_leaf_that_another_update_reads_is_read_before_it_is_written():
    _, (a, b), shared = captured(lambda s: ((s[0] + s[1], s[1] * s[0]), None), A, B)
    assert_trees_equal((a, b), (A + B, B * A))
    assert shared == 0  # one set of leaves


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_new_value_that_is_also_measured_keeps_its_leaf_from_shared_code():
    def step(s):
        new = s[0] * 2
        return (new, s[1] * 2), new.sum()

    (_, total), (a, b), shared = captured(step, A, B)
    assert_trees_equal((a, b, total), (A * 2, B * 2, 2 * A.sum()))
    assert shared == 0  # the first leaf is needed before the end, so one is left


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_counter_that_moves_is_read_before_it_moves():
    count = torch.tensor(3.0)
    _, (a, b, moved), _ = captured(lambda s: ((s[0] * s[2], s[1] * s[2], s[2] + 1), None), A, B, count)
    assert_trees_equal((a, b, moved), (A * 3, B * 3, count + 1))


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_part_of_another_leaf_is_read_before_that_is_written():
    def step(s):
        return (s[0] + s[2][:4], s[1] + s[2][4:], s[2] * 2), None

    _, written, _ = captured(step, A, B, torch.arange(8.0))
    assert_trees_equal(written, (A + torch.arange(4.0), B + torch.arange(4.0, 8.0), torch.arange(8.0) * 2))


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_value_that_is_changed_in_place_later_is_read_before():
    def step(s):
        scratch = s[2].clone()
        new = s[0] * scratch, s[1] * scratch
        scratch.add_(1)
        return (*new, scratch), None

    _, written, _ = captured(step, A, B, torch.arange(4.0))
    assert_trees_equal(written, (A * torch.arange(4.0), B * torch.arange(4.0), torch.arange(1.0, 5.0)))


@pytest.mark.usefixtures("few_short_leaves_pay")
def test_a_leaf_that_lies_otherwise_in_memory_is_updated_too():
    gradient = torch.arange(16.0).view(4, 4)
    _, written, _ = captured(lambda s: ((s[0] - s[2].t(), s[1] - s[2].t(), s[2] + 0), None), torch.ones(4, 4), torch.zeros(4, 4), gradient)
    assert_trees_equal(written, (1 - gradient.t(), 0 - gradient.t(), gradient))
