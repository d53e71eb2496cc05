"""A teacher that is the average of its student: a hook of ten lines, whose average is its state."""

import copy

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, training


def mean_teacher(model, decay):
    """Replace the targets by what the average of the weights says, and move the average after each update."""
    teacher, average = copy.deepcopy(model).eval(), ps.hooks.ema(decay, name="teacher")

    def update(state, ctx):
        if ctx.stage is ps.Stage.AFTER_OPTIMIZER_STEP:
            return average.update(state, ctx)
        with torch.no_grad():
            wanted = torch.func.functional_call(teacher, (state.params, state.buffers), (ctx.batch["x"],))
        return state, ctx.replace(targets={**ctx.targets, "y": 0.5 * wanted + 0.5 * ctx.targets["y"]})

    return ps.Hook("teacher", average.stages | {ps.Stage.BEFORE_LOSS}, average.init, update)


def taught(**changes):
    model = seeded(Plain)
    return training(model, ps.sgd(0.1), hooks=(mean_teacher(model, 0.5),), **changes)


@pytest.mark.parametrize("engine", ["autograd", "func"])
def test_a_student_learns_from_the_average_of_itself(engine):
    tr, data = taught(grad_engine=engine), batches(2)
    first = tr.init()
    second, _ = tr.step(first, data[0])
    average = ps.tree.map(lambda a, b: (a + b) / 2, first.params, second.params)
    wanted, answer = (tr.evaluate(second, data[1], params)[0]["y"] for params in (average, second.params))
    expected = (answer - 0.5 * wanted - 0.5 * data[1]["y"]).square().mean()
    assert tr.step(second, data[1])[1]["loss/total"].item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_teacher_is_captured_and_saved_with_the_student(tmp_path):
    tr, data = taught(), batches(4)
    state, _ = run(ps.compile(tr.step, backend="eager", on_recompile="error"), tr.init(), data[:2])
    ps.save(tmp_path / "saved", state)
    resumed, _ = run(tr.step, ps.load(tmp_path / "saved", like=tr.init()), data[2:])
    assert_trees_equal(resumed, run(tr.step, tr.init(), data)[0])
