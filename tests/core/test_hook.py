"""The hook contract: what each stage sees and may replace, eager and compiled; and what is refused."""

import dataclasses

import pytest
import torch

import purestep as ps
from purestep.core.hook import MAY_REPLACE, OWNED_BY_CHAIN
from purestep.errors import HookError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import Plain, batches, mean_squared_error, run, seeded, training

STAGES = list(MAY_REPLACE)
PRESENT = {
    ps.Stage.BEFORE_BATCH: set(),
    ps.Stage.BEFORE_FORWARD: set(),
    ps.Stage.AFTER_FORWARD: {"predictions"},
    ps.Stage.BEFORE_LOSS: {"predictions", "targets"},
    ps.Stage.AFTER_LOSS: {"predictions", "targets", "loss"},
    ps.Stage.BEFORE_BACKWARD: {"predictions", "targets", "loss"},
    ps.Stage.AFTER_BACKWARD: {"predictions", "targets", "loss", "grads"},
    ps.Stage.BEFORE_OPTIMIZER_STEP: {"predictions", "targets", "loss", "grads"},
    ps.Stage.AFTER_OPTIMIZER_STEP: {"predictions", "targets", "loss", "grads", "updates", "applied"},
    ps.Stage.AFTER_BATCH: {"predictions", "targets", "loss", "grads", "updates", "applied"},
}
OPTIONAL = ("predictions", "targets", "loss", "grads", "updates", "applied")
at_every_stage = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


def make_hook(stages, update, name="test", init=lambda state: ()):
    return ps.Hook(name, frozenset(stages), init, update)


def gated(**changes):
    return training(seeded(Plain), ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)), **changes)


def weight_of(ctx):
    return ctx.params["out.weight"]


def recording(stage):
    """Records a digest of what the stage sees in its state, and checks that fields are there that should be."""

    def update(state, ctx):
        assert ctx.stage is stage
        assert {field for field in OPTIONAL if getattr(ctx, field) is not None} == PRESENT[stage]
        seen = [weight_of(ctx).sum(), ctx.batch["x"].sum(), ctx.counters.batch_count.double(), ctx.seed.double()]
        if ctx.predictions is not None:
            seen.append(ctx.predictions["y"].sum())
        if ctx.targets is not None:
            seen.append(ctx.targets["y"].sum())
        if ctx.loss is not None:
            seen.append(ctx.loss.total)
        if ctx.grads is not None:
            seen.append(ctx.grads["out.weight"].sum())
        if ctx.updates is not None:
            seen.extend([ctx.updates["out.weight"].sum(), ctx.applied.double()])
        digest = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in seen])
        padded = torch.cat([digest, digest.new_zeros(len(state) - len(digest))])
        return padded, ctx.with_metrics(**{stage.name: digest.sum()})

    return make_hook({stage}, update, stage.name, lambda state: torch.zeros(10, dtype=torch.float64))


@at_every_stage
def test_a_hook_sees_what_its_stage_holds(stage):
    tr = gated(hooks=(recording(stage),))
    state, batch = tr.init(seed=5), batches(1)[0]
    after, metrics = tr.step(state, batch)
    seen = after.hook_state[stage.name]
    later = stage in (ps.Stage.AFTER_OPTIMIZER_STEP, ps.Stage.AFTER_BATCH)
    params = after.params if later else state.params
    count = 1.0 if stage is ps.Stage.AFTER_BATCH else 0.0
    assert seen[:4].tolist() == [params["out.weight"].sum().item(), batch["x"].sum().item(), count, 5.0]
    assert metrics[stage.name].item() == pytest.approx(seen.sum().item(), rel=1e-12)


def test_hooks_see_the_same_at_all_stages_eager_traced_and_compiled():
    torch._dynamo.reset()
    tr = gated(hooks=tuple(recording(stage) for stage in STAGES))
    state, batch = tr.init(seed=5), batches(1)[0]
    expected = tr.step(state, batch)
    assert_trees_equal(ps.compile(tr.step, backend="eager")(state, batch), expected)
    # sums of few numbers, fused otherwise
    compiled = torch.compile(tr.step, fullgraph=True, backend="aot_eager")(state, batch)
    assert_trees_close(compiled, expected, rtol=1e-10, atol=1e-12)


@at_every_stage
def test_a_metric_may_be_added_at_every_stage(stage):
    tr = gated(hooks=(make_hook({stage}, lambda state, ctx: (state, ctx.with_metrics(mark=torch.tensor(7.0)))),))
    assert tr.step(tr.init(), batches(1)[0])[1]["mark"].item() == 7.0


def test_stages_run_in_the_order_of_their_definition():
    order = []

    def update(state, ctx):
        order.append(ctx.stage)
        return state, ctx

    tr = gated(hooks=(make_hook(STAGES, update),))
    tr.step(tr.init(), batches(1)[0])
    assert order == STAGES
    assert [stage for stage in ps.Stage if stage in MAY_REPLACE] == STAGES


def test_there_are_the_eighteen_stages_of_which_twelve_belong_to_a_batch():
    assert len(ps.Stage) == 18
    assert len(MAY_REPLACE) + len(OWNED_BY_CHAIN) == 12


def test_hooks_of_one_stage_run_in_the_order_given_and_see_each_others_changes():
    double = make_hook(
        {ps.Stage.BEFORE_BATCH}, lambda state, ctx: (state, ctx.replace(batch=ps.tree.map(lambda x: 2 * x, ctx.batch))), "double"
    )
    seen = make_hook({ps.Stage.BEFORE_BATCH}, lambda state, ctx: (state, ctx.with_metrics(seen=ctx.batch["x"].sum())), "seen")
    batch = batches(1)[0]
    for hooks, factor in (((double, seen), 2.0), ((seen, double), 1.0)):
        tr = gated(hooks=hooks)
        assert tr.step(tr.init(), batch)[1]["seen"].item() == factor * batch["x"].sum().item()


@pytest.mark.parametrize("stage", [ps.Stage.BEFORE_BATCH, ps.Stage.BEFORE_FORWARD])
def test_a_replaced_batch_is_what_is_trained_on(stage):
    batch, other = batches(2)
    swap = make_hook({stage}, lambda state, ctx: (state, ctx.replace(batch=other)))
    tr, plain = gated(hooks=(swap,)), gated()
    assert_trees_equal(tr.step(tr.init(), batch)[0].params, plain.step(plain.init(), other)[0].params)


@pytest.mark.parametrize("stage", [ps.Stage.AFTER_FORWARD, ps.Stage.BEFORE_LOSS])
def test_replaced_predictions_are_what_the_loss_sees_and_is_differentiated_through(stage):
    batch = batches(1)[0]
    halve = make_hook({stage}, lambda state, ctx: (state, ctx.replace(predictions={"y": ctx.predictions["y"] * 0.5})))
    tr = gated(hooks=(halve,))
    plain = gated(forward=lambda model, batch: {"y": model(batch["x"]) * 0.5})
    assert_trees_equal(tr.step(tr.init(), batch)[0].params, plain.step(plain.init(), batch)[0].params)


def test_replaced_targets_are_what_the_loss_sees():
    batch = batches(1)[0]
    zero = make_hook({ps.Stage.BEFORE_LOSS}, lambda state, ctx: (state, ctx.replace(targets={"y": torch.zeros_like(ctx.targets["y"])})))
    tr, plain = gated(hooks=(zero,)), gated()
    expected = plain.step(plain.init(), {**batch, "y": torch.zeros_like(batch["y"])})[0]
    assert_trees_equal(tr.step(tr.init(), batch)[0].params, expected.params)


def test_a_replaced_loss_is_what_is_differentiated():
    batch = batches(1)[0]
    triple = make_hook(
        {ps.Stage.AFTER_LOSS}, lambda state, ctx: (state, ctx.replace(loss=dataclasses.replace(ctx.loss, total=3 * ctx.loss.total)))
    )
    tr, plain = gated(hooks=(triple,)), gated()
    (one, metrics), (other, expected) = tr.step(tr.init(), batch), plain.step(plain.init(), batch)
    assert metrics["loss/total"].item() == 3 * expected["loss/total"].item()
    moved = lambda after: after.params["out.weight"] - tr.init().params["out.weight"]  # noqa: E731
    # the product is rounded once more
    assert torch.allclose(moved(one), 3 * moved(other), rtol=1e-10)


def test_replaced_metrics_are_those_returned():
    only = make_hook({ps.Stage.AFTER_BATCH}, lambda state, ctx: (state, ctx.replace(metrics={"only": ctx.metrics["loss/total"]})))
    tr = gated(hooks=(only,))
    assert list(tr.step(tr.init(), batches(1)[0])[1]) == ["only"]


FIELDS = ("batch", "counters", "params", "buffers", "seed", "predictions", "targets", "loss", "grads", "updates", "applied", "stage")
FORBIDDEN = [(stage, field) for stage in STAGES for field in FIELDS if field not in MAY_REPLACE[stage]]


@pytest.mark.parametrize(("stage", "field"), FORBIDDEN, ids=lambda value: getattr(value, "name", value))
def test_a_replacement_that_a_stage_does_not_allow_is_refused_naming_hook_stage_and_field(stage, field):
    thief = make_hook({stage}, lambda state, ctx: (state, ctx.replace(**{field: "something else"})), "thief")
    tr = gated(hooks=(thief,))
    with pytest.raises(HookError, match=rf"hook 'thief' at {stage.name} replaced {field}; it may replace .*metrics"):
        tr.step(tr.init(), batches(1)[0])


@pytest.mark.parametrize("form", [lambda step: ps.compile(step, backend="eager"), lambda step: torch.compile(step, backend="aot_eager")])
def test_a_refused_replacement_is_refused_in_captured_form_too(form):
    torch._dynamo.reset()
    thief = make_hook({ps.Stage.AFTER_BACKWARD}, lambda state, ctx: (state, ctx.replace(grads=None)), "thief")
    tr = gated(hooks=(thief,))
    with pytest.raises(Exception, match="hook 'thief' at AFTER_BACKWARD replaced grads"):
        form(tr.step)(tr.init(), batches(1)[0])


@pytest.mark.parametrize("stage", list(OWNED_BY_CHAIN), ids=lambda stage: stage.name)
def test_a_hook_at_a_stage_of_the_chain_is_refused_with_what_to_write_instead(stage):
    with pytest.raises(HookError, match=rf"hook 'test' asks for {stage.name}, which belongs to the chain; write a transform"):
        gated(hooks=(make_hook({stage}, lambda state, ctx: (state, ctx)),))


OUTSIDE = [stage for stage in ps.Stage if stage not in MAY_REPLACE and stage not in OWNED_BY_CHAIN]


@pytest.mark.parametrize("stage", OUTSIDE, ids=lambda stage: stage.name)
def test_a_hook_at_a_stage_of_the_loop_is_refused(stage):
    with pytest.raises(HookError, match=rf"asks for {stage.name}, which is outside the step; write a listener"):
        gated(hooks=(make_hook({stage}, lambda state, ctx: (state, ctx)),))


def test_two_hooks_of_one_name_are_refused():
    with pytest.raises(HookError, match="two hooks are called 'ema'"):
        gated(hooks=(ps.hooks.ema(0.9), ps.hooks.ema(0.99)))


def test_what_is_no_hook_is_refused():
    with pytest.raises(HookError, match="expected a Hook, got function"):
        gated(hooks=(lambda event: None,))


def test_a_hook_that_forgets_to_return_the_context_is_told_so():
    with pytest.raises(HookError, match="returned tuple; expected"):
        tr = gated(hooks=(make_hook({ps.Stage.BEFORE_BATCH}, lambda state, ctx: (state, ())),))
        tr.step(tr.init(), batches(1)[0])


def test_init_of_a_hook_sees_the_whole_state_without_hook_states():
    seen = []
    tr = gated(hooks=(make_hook({ps.Stage.AFTER_BATCH}, lambda state, ctx: (state, ctx), init=lambda state: seen.append(state) or ()),))
    tr.init(seed=4)
    (state,) = seen
    assert (state.hook_state, state.seed.item(), set(state.opt_state)) == ({}, 4, {"skip_nonfinite", "sgd"})


def test_a_cut_batch_shows_each_part_before_the_backward_and_the_whole_after_it():
    seen = []

    def update(state, ctx):
        seen.append((ctx.stage.name, type(ctx.batch)))
        return state + 1, ctx

    hook = make_hook({ps.Stage.BEFORE_FORWARD, ps.Stage.AFTER_BACKWARD}, update, init=lambda state: torch.tensor(0))
    tr = gated(hooks=(hook,), microbatches=3)
    after, _ = tr.step(tr.init(), batches(1, size=6)[0])
    assert seen == [("BEFORE_FORWARD", dict)] * 3 + [("AFTER_BACKWARD", tuple)]
    assert after.hook_state["test"].item() == 4


def test_a_metric_of_each_part_is_averaged():
    hook = make_hook({ps.Stage.AFTER_FORWARD}, lambda state, ctx: (state, ctx.with_metrics(mean=ctx.batch["x"].mean())))
    tr, batch = gated(hooks=(hook,), microbatches=2), batches(1)[0]
    assert tr.step(tr.init(), batch)[1]["mean"].item() == pytest.approx(batch["x"].mean().item(), abs=1e-14)


def test_the_loss_of_a_part_may_gain_penalties_only():
    scale = make_hook({ps.Stage.AFTER_LOSS}, lambda state, ctx: (state, ctx.replace(loss=dataclasses.replace(ctx.loss, sums={}))), "scale")
    tr = gated(hooks=(scale,), microbatches=2)
    with pytest.raises(HookError, match="hook 'scale' at AFTER_LOSS replaced the loss of a part of the batch"):
        tr.step(tr.init(), batches(1)[0])


def test_the_loss_is_live_until_the_backward_and_detached_afterwards():
    live = {}

    def update(state, ctx):
        live[ctx.stage.name] = ctx.loss.total.requires_grad
        return state, ctx

    tr = gated(hooks=(make_hook({ps.Stage.AFTER_LOSS, ps.Stage.BEFORE_BACKWARD, ps.Stage.AFTER_BACKWARD}, update),))
    tr.step(tr.init(), batches(1)[0])
    assert live == {"AFTER_LOSS": True, "BEFORE_BACKWARD": True, "AFTER_BACKWARD": False}


def test_gradients_come_to_hooks_without_the_scale_of_the_loss():
    norm = ps.hooks.gradient_norm()
    scaled = training(seeded(Plain), ps.chain(ps.dynamic_loss_scale(), ps.sgd(0.1)), hooks=(norm,))
    plain = training(seeded(Plain), ps.sgd(0.1), hooks=(norm,))
    one, other = (tr.step(tr.init(), batches(1)[0])[1]["gradient_norm"].item() for tr in (scaled, plain))
    assert one == pytest.approx(other, rel=1e-12)


def test_a_hook_may_keep_any_tree_as_its_state_and_is_checkpointed_with_it():
    hook = make_hook(
        {ps.Stage.AFTER_BATCH},
        lambda state, ctx: ({"n": state["n"] + 1, "nested": (state["nested"][0] * 2,)}, ctx),
        "tree",
        lambda state: {"n": torch.tensor(0), "nested": (torch.ones(2),)},
    )
    tr = training(seeded(Plain), hooks=(hook,), loss=mean_squared_error())
    state, _ = run(tr.step, tr.init(), batches(3))
    assert (state.hook_state["tree"]["n"].item(), state.hook_state["tree"]["nested"][0][0].item()) == (3, 8.0)
