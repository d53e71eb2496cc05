"""Frozen is bitwise constant, whatever the optimizer does; and what thaws later starts clean."""

import dataclasses

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import WIDTH, batches, run, seeded, training


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.head(self.backbone(x))


OPTIMIZERS = {
    "adamw": lambda: ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(0.01, weight_decay=0.1)),
    "momentum": lambda: ps.chain(ps.clip_by_global_norm(1.0), ps.add_decayed_weights(0.1), ps.sgd(0.01, momentum=0.9)),
}


def tuned(optimizer, trainable):
    return training(seeded(Backbone), OPTIMIZERS[optimizer](), trainable=trainable, hooks=(ps.hooks.ema(0.99),))


def inside(tree):
    return {path: leaf for path, leaf in ps.tree.items(tree) if "backbone" in path}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_hundred_steps_with_a_resume_leave_a_frozen_backbone_bitwise(optimizer, tmp_path):
    tr, data = tuned(optimizer, "head.*"), batches(10) * 5
    first = tr.init()
    half, _ = run(tr.step, first, data)
    ps.save(tmp_path / "half", half)
    state, _ = run(tr.step, ps.load(tmp_path / "half", like=tr.init()), data)
    assert_trees_equal((inside(state.params), inside(state.buffers)), (inside(first.params), inside(first.buffers)))
    assert_trees_equal(inside(state.hook_state["ema"].params), inside(first.hook_state["ema"].params))
    assert_trees_equal(state, run(tr.step, half, data)[0])


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_backbone_with_a_history_can_be_frozen_and_thawed_and_starts_clean(optimizer):
    warm, cold, data = tuned(optimizer, "*"), tuned(optimizer, "head.*"), batches(5)
    state, _ = run(warm.step, warm.init(), data)
    frozen = dataclasses.replace(state, opt_state=cold.init().opt_state)
    still, _ = run(cold.step, frozen, data)
    assert_trees_equal((inside(still.params), inside(still.buffers)), (inside(state.params), inside(state.buffers)))
    thawed = dataclasses.replace(still, opt_state=warm.init().opt_state)
    assert inside(thawed.opt_state)
    assert not any(leaf.any() for leaf in inside(thawed.opt_state).values())
    after, _ = warm.step(thawed, data[0])
    assert all(torch.any(leaf != still.params[path]) for path, leaf in after.params.items())


def test_a_part_with_a_learning_rate_of_zero_is_constant():
    optimizer = ps.partition({"still": ps.sgd(0.0), "moves": ps.sgd(0.1)}, {"backbone.*": "still", "head.*": "moves"})
    tr = training(seeded(Backbone), optimizer)
    first = tr.init()
    state, _ = run(tr.step, first, batches(5))
    assert_trees_equal(inside(state.params), inside(first.params))
    assert torch.all(state.params["head.weight"] != first.params["head.weight"])
