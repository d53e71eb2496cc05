"""Several models in one step: names, shared tensors, frozen teachers, alternating updates, loss weights as schedules."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import WIDTH, Net, Plain, batches, mean_squared_error, run, seeded


def distillation(**changes):
    """A student that follows a frozen teacher."""

    def forward(models, batch):
        with torch.no_grad():
            wanted = models["teacher"](batch["x"])
        return {"y": models["student"](batch["x"]), "teacher": wanted}

    options = {
        "loss": mean_squared_error(),
        "optimizer": ps.adamw(1e-2, weight_decay=0.1),
        "forward": forward,
        "targets": lambda loss, predictions, batch, *, target_keys: {"y": predictions["teacher"]},
        "trainable": "student.*",
        "hooks": (ps.hooks.ema(0.9),),
    }
    models = {"student": seeded(Plain), "teacher": seeded(Net, seed=7)}
    return ps.Training(models, **options | changes)


def test_distillation_trains_the_student_and_leaves_the_teacher_bitwise():
    tr = distillation()
    state = tr.init()
    after, metrics = run(tr.step, state, batches(20))
    assert_trees_equal((after.params["teacher"], after.buffers["teacher"]), (state.params["teacher"], state.buffers["teacher"]))
    assert metrics["loss/total"] < tr.step(state, batches(1)[0])[1]["loss/total"]
    assert not [path for path in ps.tree.paths(after.opt_state) if "teacher" in path]


def test_parameters_are_named_by_their_model():
    state = distillation().init()
    assert {path.partition(".")[0] for path in ps.tree.paths(state.params)} == {"student", "teacher"}
    assert ("teacher.decoder.weight", "teacher.encoder.weight") in state.aliases


def test_evaluate_runs_all_models_in_eval_mode():
    tr = distillation()
    predictions, sums = tr.evaluate(tr.init(), batches(1)[0])
    assert set(predictions) == {"y", "teacher"}
    assert sums["MSELoss"].denominator.item() == 8 * WIDTH


def test_several_models_compile_whole_and_by_tracing():
    torch._dynamo.reset()
    tr = distillation()
    state, batch = tr.init(), batches(1)[0]
    expected = tr.step(state, batch)
    assert_trees_equal(ps.compile(tr.step, backend="eager")(state, batch), expected)
    assert_trees_close(torch.compile(tr.step, fullgraph=True, backend="aot_eager")(state, batch), expected, rtol=1e-10, atol=1e-12)


def test_a_tensor_shared_by_two_models_has_one_leaf_and_the_sum_of_both_gradients():
    one, two = seeded(Plain), seeded(Plain, seed=3)
    two.hidden = one.hidden

    def forward(models, batch):
        return {"y": models["one"](batch["x"]) + models["two"](batch["x"])}

    tr = ps.Training({"one": one, "two": two}, loss=mean_squared_error(), optimizer=ps.sgd(1.0), forward=forward)
    state, batch = tr.init(), batches(1)[0]
    after, _ = tr.step(state, batch)
    (one(batch["x"]) + two(batch["x"]) - batch["y"]).square().mean().backward()
    moved = state.params["one"]["hidden.weight"] - after.params["one"]["hidden.weight"]
    assert torch.allclose(moved, one.hidden.weight.grad, rtol=1e-12, atol=1e-14)
    assert sorted(state.params["two"]) == ["out.bias", "out.weight"]


def alternating():
    """Two models that take turns: each part of the chain learns in every second update."""
    turn = lambda parity: lambda count: torch.where(count % 2 == parity, 0.1, 0.0)  # noqa: E731
    optimizer = ps.partition({"even": ps.sgd(turn(0)), "odd": ps.sgd(turn(1))}, {"a.*": "even", "b.*": "odd"})
    forward = lambda models, batch: {"y": models["a"](models["b"](batch["x"]))}  # noqa: E731
    models = {"a": seeded(nn.Linear, WIDTH, WIDTH), "b": seeded(nn.Linear, WIDTH, WIDTH, seed=1)}
    return ps.Training(models, loss=mean_squared_error(), optimizer=optimizer, forward=forward)


def test_a_schedule_lets_two_models_take_turns_in_one_graph():
    tr, data = alternating(), batches(2)
    step = ps.compile(tr.step, backend="eager", on_recompile="error")
    first = tr.init()
    second, _ = step(first, data[0])
    third, _ = step(second, data[1])
    assert_trees_equal(second.params["b"], first.params["b"])
    assert_trees_equal(third.params["a"], second.params["a"])
    assert torch.all(second.params["a"]["weight"] != first.params["a"]["weight"])
    assert torch.all(third.params["b"]["weight"] != second.params["b"]["weight"])
    assert len(step.explain()) == 1


def test_a_model_that_the_forward_leaves_out_is_reported_and_stays():
    models = {"a": seeded(Plain), "b": seeded(Plain, seed=1)}
    tr = ps.Training(
        models, loss=mean_squared_error(), optimizer=ps.adamw(0.1), forward=lambda models, batch: {"y": models["a"](batch["x"])}
    )
    state = tr.init()
    with pytest.warns(UserWarning, match=r"the loss does not depend on b\.hidden\.bias"):
        after, _ = tr.step(state, batches(1)[0])
    assert_trees_equal(after.params["b"], state.params["b"])


# --- weights of terms as schedules ----------------------------------------------------------------------------------


def weighted(weight, **options):
    loss = ps.ComposedLoss((weight * mean_squared_error(name="a") + 1.0 * mean_squared_error(name="b")).terms, **options)
    return ps.Training(seeded(Plain), loss=loss, optimizer=ps.sgd(0.01), forward=lambda model, batch: {"y": model(batch["x"])})


def test_a_weight_may_be_a_schedule_of_updates_without_another_capture():
    tr = weighted(ps.LinearWeight(0.0, 4.0, num_steps=4), normalize_weights=False)
    step, state, seen = ps.compile(tr.step, backend="eager", on_recompile="error"), tr.init(), []
    for batch in batches(6):
        state, metrics = step(state, batch)
        seen.append(metrics["loss/a/weight"].item())
        assert metrics["loss/total"].item() == pytest.approx((seen[-1] + 1.0) * metrics["loss/a/unweighted"].item(), rel=1e-14)
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0]


def test_a_weight_may_be_a_schedule_of_epochs():
    tr = weighted(ps.LinearWeight(0.0, 2.0, num_steps=2, per_epoch=True), normalize_weights=False)
    state, seen = tr.init(), []
    for _ in range(3):
        state, metrics = run(tr.step, state, batches(2))
        seen.append(metrics["loss/a/weight"].item())
        state = tr.end_epoch(state)
    assert seen == [0.0, 1.0, 2.0]


def test_scheduled_weights_are_normalised_by_their_sum():
    tr = weighted(ps.ConstantWeight(3.0))
    _, metrics = tr.step(tr.init(), batches(1)[0])
    assert (metrics["loss/a/weight"].item(), metrics["loss/b/weight"].item()) == (0.75, 0.25)


def test_a_users_own_schedule_is_a_function_of_both_counts():
    tr = weighted(lambda step_count, epoch_count: (step_count + 1).double(), normalize_weights=False)
    _, metrics = run(tr.step, tr.init(), batches(3))
    assert metrics["loss/a/weight"].item() == 3.0
