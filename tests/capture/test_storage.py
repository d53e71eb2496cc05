"""Flat storage: the same bits, the same paths and checkpoints, one operation for all leaves that are updated alike."""

import dataclasses

import pytest
import torch

import purestep as ps
from purestep.errors import ConsumedStateError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import batches, poisoned, run, training


def flat(step, **options):
    return ps.compile(step, backend="eager", donate=True, storage="flat", on_recompile="error", **options)


OPTIMIZERS = {
    "adamw": lambda: ps.adamw(1e-2, weight_decay=0.1),
    "gated": lambda: ps.chain(ps.skip_nonfinite(), ps.adamw(1e-2, weight_decay=0.1)),
    "momentum": lambda: ps.sgd(0.1, momentum=0.9),
    "accumulating": lambda: ps.chain(ps.accumulate(2), ps.adam(1e-2)),
    "lion": lambda: ps.lion(1e-3),
    "muon": lambda: ps.muon(1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_with_flat_storage_has_the_bits_of_the_eager_one(name):
    tr, data = training(optimizer=OPTIMIZERS[name](), hooks=(ps.hooks.ema(0.9),)), batches(5)
    data[3] = poisoned(data[3]) if name == "gated" else data[3]
    (state, metrics), (expected, reported) = run(flat(tr.step), tr.init(), data), run(tr.step, tr.init(), data)
    assert_trees_equal(state, expected)
    # the reported norm sums over all leaves at once
    assert_trees_close(metrics, reported, rtol=1e-14, atol=0)


def test_many_large_matrices_that_stay_leaves_beside_buffers_are_updated_alike():
    model = torch.nn.Sequential(*[torch.nn.Linear(129, 129) for _ in range(16)])
    tr = ps.Training(
        model, loss=ps.MSELoss(prediction_key="y", target_key="y"), optimizer=ps.muon(1e-2), forward=lambda m, b: {"y": m(b["x"])}
    )
    data = [{"x": torch.randn(2, 129), "y": torch.randn(2, 129)}] * 2
    assert_trees_equal(run(flat(tr.step), tr.init(), data)[0], run(tr.step, tr.init(), data)[0])


def test_clipping_takes_one_norm_over_all_leaves():
    tr, data = training(optimizer=ps.chain(ps.clip_by_global_norm(0.5), ps.adamw(1e-2))), batches(5)
    # another order of summation; the bias before a normalisation has a gradient of rounding errors, which Adam enlarges
    assert_trees_close(run(flat(tr.step), tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)


def storages(tree):
    return {leaf.untyped_storage().data_ptr() for leaf in ps.tree.leaves(tree)}


def test_parameters_moments_and_averages_live_in_one_buffer_each():
    tr, data = training(optimizer=ps.adamw(1e-2), hooks=(ps.hooks.ema(0.9),)), batches(3)
    step = flat(tr.step)
    state, _ = run(step, tr.init(), data)
    moments = state.opt_state["scale_by_adam"]
    assert [len(storages(part)) for part in (state.params, moments.mu, moments.nu)] == [1, 1, 1]
    assert len(storages((state.params, moments.mu, moments.nu))) == 3
    assert ps.tree.paths(state) == ps.tree.paths(tr.init())


def test_a_checkpoint_of_a_flat_state_is_that_of_any_other_and_holds_each_leaf_once(tmp_path):
    tr, data = training(optimizer=ps.adamw(1e-2)), batches(3)
    state, _ = run(flat(tr.step), tr.init(), data)
    ps.save(tmp_path / "flat", state)
    ps.save(tmp_path / "leaves", ps.tree.clone(state))
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).rglob("*") if file.is_file()) for name in ("flat", "leaves")]
    assert abs(sizes[0] - sizes[1]) < 1000  # times and names in the manifest
    found = ps.load(tmp_path / "flat", like=tr.init())
    assert_trees_equal(found, state)
    assert_trees_equal(flat(tr.step)(found, data[0]), tr.step(ps.tree.clone(state), data[0]))


def test_the_state_given_to_the_first_call_is_refused_afterwards():
    tr, batch = training(), batches(1)[0]
    step, state = flat(tr.step), tr.init()
    step(state, batch)
    with pytest.raises(ConsumedStateError):
        step(state, batch)


def test_a_leaf_replaced_between_steps_is_used():
    tr, data = training(optimizer=ps.sgd(0.1, momentum=0.9)), batches(2)
    step = flat(tr.step)
    state, _ = step(tr.init(), data[0])
    params = ps.tree.map(lambda p: p * 2, state.params)
    changed = dataclasses.replace(state, params=params)
    expected = tr.step(ps.tree.clone(changed), data[1])
    assert_trees_equal(step(changed, data[1]), expected)


def test_another_size_of_batch_goes_on_in_the_same_buffers():
    tr, data = training(optimizer=ps.adamw(1e-2)), [*batches(2, size=6), *batches(2, size=5)]
    step = flat(tr.step, max_captures=2)
    state, _ = step(tr.init(), data[0])
    before = storages(state.params)
    after = run(step, state, data[1:])
    assert storages(after[0].params) == before
    assert_trees_equal(after[0], run(tr.step, tr.init(), data)[0])


def test_flat_storage_wants_donation():
    with pytest.raises(ValueError, match="needs donate=True"):
        ps.compile(lambda state: state, storage="flat")
