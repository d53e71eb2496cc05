"""Frozen parameters and buffers: bitwise constant, without state, in no norm."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import WIDTH, batches, run, seeded, training


class Backbone(nn.Module):
    """A backbone with BatchNorm, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.head(self.backbone(x))


OPTIMIZERS = {
    "adamw": lambda: ps.adamw(0.01, weight_decay=0.1),
    "momentum and decay": lambda: ps.chain(ps.add_decayed_weights(0.1), ps.sgd(0.01, momentum=0.9, nesterov=True)),
    "clipping and window": lambda: ps.chain(
        ps.skip_nonfinite(), ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.adamw(0.01, weight_decay=0.1)
    ),
}


def frozen(optimizer="adamw", model=None, trainable="head.*", **changes):
    return training(model or seeded(Backbone), OPTIMIZERS[optimizer](), trainable=trainable, **changes)


def backbone_of(tree):
    return {path: leaf for path, leaf in ps.tree.items(tree) if "backbone" in path}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_frozen_weights_buffers_and_their_average_are_bitwise_constant(optimizer):
    tr = frozen(optimizer, hooks=(ps.hooks.ema(0.9),))
    state = tr.init()
    after, _ = run(tr.step, state, batches(20))
    for field in ("params", "buffers", "hook_state"):
        assert_trees_equal(backbone_of(getattr(after, field)), backbone_of(getattr(state, field)))
    assert torch.all(after.params["head.weight"] != state.params["head.weight"])


def test_frozen_leaves_have_no_optimizer_state():
    assert backbone_of(frozen().init().opt_state) == {}


def test_what_the_user_has_frozen_stays_frozen():
    model = seeded(Backbone)
    model.backbone.requires_grad_(False)
    tr = frozen(model=model, trainable="*")
    assert tr.trainable == {"head.weight", "head.bias"}
    after, _ = run(tr.step, tr.init(), batches(3))
    assert_trees_equal(backbone_of((after.params, after.buffers)), backbone_of((tr.init().params, tr.init().buffers)))


def test_frozen_gradients_are_in_no_norm():
    data = batches(1)
    frozen_norm, whole_norm = (tr.step(tr.init(), data[0])[1]["update/grad_norm"] for tr in (frozen(), training(seeded(Backbone))))
    by_hand = seeded(Backbone)
    (by_hand.head(by_hand.backbone.eval()(data[0]["x"])) - data[0]["y"]).square().mean().backward()
    head = ps.tree.global_norm([p.grad for p in by_hand.head.parameters()])
    assert frozen_norm.item() == pytest.approx(head.item(), rel=1e-12)
    assert frozen_norm < whole_norm


def test_a_large_frozen_gradient_does_not_clip_the_trainable_one():
    loss = lambda predictions, batch: 0.5 * predictions["head"].sum() + 100.0 * predictions["backbone"].sum()  # noqa: E731
    model = nn.ParameterDict({"head": nn.Parameter(torch.ones(1)), "backbone": nn.Parameter(torch.ones(1))})
    tr = ps.Training(
        model,
        loss=loss,
        optimizer=ps.chain(ps.clip_by_global_norm(1.0), ps.sgd(1.0)),
        trainable="head",
        forward=lambda model, batch: dict(model.items()),
    )
    after, metrics = tr.step(tr.init(), torch.ones(1))
    assert (metrics["update/grad_norm"].item(), after.params["head"].item()) == (0.5, 0.5)


def test_batchnorm_of_a_frozen_backbone_uses_its_running_statistics():
    model = seeded(Backbone)
    tr = frozen(model=model)
    batch = batches(1)[0]
    expected = model.eval()(batch["x"])
    loss = (expected - batch["y"]).square().mean()
    assert tr.step(tr.init(), batch)[1]["loss/total"].item() == pytest.approx(loss.item(), rel=1e-12)


def test_unfreezing_begins_with_zero_moments():
    data = batches(6)
    first = frozen()
    half, _ = run(first.step, first.init(), data[:3])
    second = frozen(trainable="*")
    fresh = second.init()
    assert backbone_of(fresh.opt_state)
    moments = [leaf for path, leaf in ps.tree.items(fresh.opt_state) if "backbone" in path]
    assert all(torch.equal(leaf, torch.zeros_like(leaf)) for leaf in moments)
    state = ps.TrainState(half.params, half.buffers, fresh.opt_state, {}, half.counters, half.seed)
    after, _ = run(second.step, state, data[3:])
    assert torch.all(after.params["backbone.0.weight"] != half.params["backbone.0.weight"])


def test_a_pattern_on_a_tied_name_trains_the_leaf():
    tr = training(trainable="decoder.weight")
    assert tr.trainable == {"encoder.weight"}


def test_evaluate_does_not_move_any_statistics():
    tr = training(seeded(Backbone))
    state, _ = run(tr.step, tr.init(), batches(2))
    before = ps.tree.clone(state)
    for batch in batches(3):
        tr.evaluate(state, batch)
    assert_trees_equal(state, before)
