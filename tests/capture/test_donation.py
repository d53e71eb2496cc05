"""Memory given away: several states in turn, leaves that come back unchanged or share memory, and checkpoints meanwhile."""

import dataclasses

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, training

OPTIONS = {"leaves": {}, "flat": {"storage": "flat"}}


def everything():
    optimizer = ps.chain(ps.skip_nonfinite(), ps.adamw(1e-2, weight_decay=0.1))  # no norm, whose sum flat storage orders otherwise
    return training(optimizer=optimizer, hooks=(ps.hooks.ema(0.9),))


def donated(step, **options):
    return ps.compile(step, backend="eager", donate=True, on_recompile="error", **options)


# --- states in turn -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_two_states_in_flight_do_not_write_into_each_other(options):
    tr, data = everything(), batches(4)
    step, states = donated(tr.step, **options), [tr.init(0), tr.init(1)]
    for batch in data:
        states = [step(state, batch)[0] for state in states]
    for seed in (0, 1):
        assert_trees_equal(states[seed], run(tr.step, tr.init(seed), data)[0])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_run_can_be_left_for_another_and_taken_up_again(options):
    tr, data = everything(), batches(4)
    step = donated(tr.step, **options)
    first, _ = run(step, tr.init(0), data[:2])
    kept = ps.tree.clone(first)
    run(step, tr.init(1), data)
    assert_trees_equal(first, kept)
    assert_trees_equal(run(step, first, data[2:])[0], run(tr.step, tr.init(0), data)[0])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_branch_of_a_run_goes_its_own_way(options):
    tr, data = everything(), batches(4)
    step = donated(tr.step, **options)
    state, _ = run(step, tr.init(), data[:2])
    branch = ps.tree.clone(state)
    found = run(step, state, data[2:])[0]
    assert_trees_equal(run(step, branch, data[2:])[0], found)
    assert_trees_equal(found, run(tr.step, tr.init(), data)[0])


# --- leaves that come back unchanged, and leaves that share memory --------------------------------------------------


class Partly(nn.Module):
    """A frozen layer before a trained one, and a buffer that nothing moves."""

    def __init__(self):
        super().__init__()
        self.frozen, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((), 2.0))

    def forward(self, x):
        return self.out(self.frozen(x) * self.scale)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_a_step_returns_unchanged_stays_as_it_is_bit_for_bit(backend, options):
    tr, data = training(seeded(Partly)), batches(3)
    before = tr.init()
    state, _ = run(ps.compile(tr.step, donate=True, backend=backend, on_recompile="error", **options), tr.init(), data)
    unchanged = ("frozen.weight", "frozen.bias")
    assert_trees_equal({name: state.params[name] for name in unchanged}, {name: before.params[name] for name in unchanged})
    assert_trees_equal(state.buffers, before.buffers)
    assert not state.params["out.weight"].equal(before.params["out.weight"])


def shares_parameters(state):
    return dataclasses.replace(state, params={**state.params, "hidden.bias": state.params["hidden.weight"][:, 0]})


def shares_with_optimizer(state):
    return dataclasses.replace(state, opt_state=ps.tree.map(lambda leaf: leaf, (state.params["out.bias"], state.opt_state)))


@pytest.mark.parametrize("share", [shares_parameters, shares_with_optimizer])
def test_leaves_that_share_memory_are_refused_before_anything_is_written(share):
    tr, (batch,) = training(seeded(Plain)), batches(1)
    state = share(tr.init())
    kept = ps.tree.clone(state)
    with pytest.raises(CaptureError, match=r"share memory; pass ps\.tree\.clone\(state\)"):
        donated(lambda state, batch: (ps.tree.map(torch.clone, state), {}))(state, batch)
    assert_trees_equal(state, kept)


def test_leaves_that_share_memory_are_parted_by_flat_storage_and_by_a_clone():
    tr, (batch,) = training(seeded(Plain), ps.sgd(0.1)), batches(1)
    expected = tr.step(shares_parameters(tr.init()), batch)
    assert_trees_equal(donated(tr.step)(ps.tree.clone(shares_parameters(tr.init())), batch), expected)
    assert_trees_equal(donated(tr.step, storage="flat")(shares_parameters(tr.init()), batch), expected)


def test_a_batch_that_shares_memory_with_the_state_is_read_before_that_is_written():
    def step(state, batch):
        return {"w": state["w"] + batch["x"], "v": state["v"] + batch["x"]}, {"x": batch["x"]}

    state = {"w": torch.ones(3), "v": torch.zeros(3)}
    state, metrics = donated(step)(state, {"x": state["w"]})
    assert (state["w"].tolist(), state["v"].tolist(), metrics["x"].tolist()) == ([2.0] * 3, [1.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_batch_that_is_a_part_of_the_state_is_read_whole_before_any_of_it_is_written(backend):
    def step(state, batch):
        # compiled, these are several kernels, the first of which writes
        return {"w": state["w"] + batch["x"].flip(0)[:, None], "v": state["v"] + batch["x"].sum()}, {"x": 2 * batch["x"]}

    step, data = ps.compile(step, donate=True, backend=backend, on_recompile="error"), torch.arange(10000.0).double().reshape(5000, 2)
    state, _ = step({"w": data, "v": data[0].clone()}, {"x": data.clone()[:, 1]})
    w, v = state["w"].clone(), state["v"].clone()
    state, metrics = step(state, {"x": state["w"][:, 1]})
    assert_trees_equal(state["w"], w + w[:, 1].flip(0)[:, None])
    assert_trees_equal(metrics["x"], 2 * w[:, 1])
    assert_trees_close(state["v"], v + w[:, 1].sum(), rtol=1e-12, atol=0.0)  # summed in another order


def test_a_leaf_put_elsewhere_in_memory_is_trained_from_what_it_holds():
    tr, data = everything(), batches(4)
    step = donated(tr.step, storage="flat")
    state, _ = run(step, tr.init(), data[:2])
    for leaf in ps.tree.leaves(state.params):
        leaf.data = 0.5 * leaf.data  # the same object
    expected, _ = run(tr.step, ps.tree.clone(state), data[2:])
    assert_trees_equal(run(step, state, data[2:])[0], expected)


def test_a_step_that_closes_over_the_state_that_it_is_given_is_refused():
    state = {"w": torch.ones(3)}
    anchor = state["w"]
    step = donated(lambda state, batch: ({"w": state["w"] - batch * (state["w"] - anchor)}, {}))
    with pytest.raises(CaptureError, match=r"closes over a tensor in the memory of w, which each call overwrites; let it"):
        step(state, torch.ones(()))
    state, _ = step(ps.tree.clone(state), torch.ones(()))
    assert state["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("leaf", "advice"),
    [
        *((number, rf"keep it as torch\.tensor\({number}\), or keep it out of the state$") for number in (3, 0.5, True)),
        ("adam", "keep it out of"),
    ],
)
def test_a_state_with_a_leaf_that_is_no_tensor_has_no_memory_to_give_away(leaf, advice):
    step = donated(lambda state, batch: ({"w": state["w"] + batch, "n": state["n"]}, {}))
    with pytest.raises(CaptureError, match=rf"n is {leaf!r}, no tensor, so it has no memory to give away; {advice}"):
        step({"w": torch.ones(3), "n": leaf}, torch.ones(()))


# --- checkpoints meanwhile ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
def test_a_checkpoint_holds_the_state_of_its_moment_however_the_run_goes_on(in_background, options, tmp_path):
    tr, data = everything(), batches(4)
    step, state = donated(tr.step, **options), tr.init()
    with ps.Checkpointer(tmp_path, every_n_steps=1, keep_last=9, async_=in_background) as writer:
        for number, batch in enumerate(data, 1):
            state, _ = step(state, batch)
            writer.save(state, step=number)  # the next call overwrites what it is given
    for number in range(1, 5):
        expected, _ = run(tr.step, tr.init(), data[:number])
        assert_trees_equal(ps.load(tmp_path, like=tr.init(), step=number), expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_run_goes_on_from_a_checkpoint_by_the_graph_that_is_there(options, tmp_path):
    tr, data = everything(), batches(4)
    step = donated(tr.step, **options)
    state, _ = run(step, tr.init(), data[:2])
    ps.save(tmp_path / "state", state)
    found, _ = run(step, ps.load(tmp_path / "state", like=tr.init()), data[2:])
    assert_trees_equal(found, run(tr.step, tr.init(), data)[0])
    assert len(step.explain()) == 1
