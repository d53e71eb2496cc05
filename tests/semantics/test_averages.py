"""Averages of weights stand beside the weights: nothing is swapped, nothing starts anew on resuming."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import Plain, batches, poisoned, run, seeded, training


def averaged(**changes):
    return training(hooks=(ps.hooks.ema(0.9),), **changes)


def saver(root):
    def listen(event):
        if event.stage in (ps.Stage.AFTER_VALIDATION, ps.Stage.AFTER_BATCH):
            ps.save(root / f"{event.stage.name}_{event.batch_count}", event.state)

    return listen


def test_what_is_saved_around_a_validation_with_averages_is_the_running_job(tmp_path):
    tr, data, held_out = averaged(), batches(3), ps.Validation(batches(2, seed=4), every_n_steps=1)
    ps.fit(tr, data, num_steps=3, validation=held_out, listeners=[saver(tmp_path)])
    running, _ = run(tr.step, tr.init(), data[:2])
    for name in ("AFTER_VALIDATION_2", "AFTER_BATCH_2"):
        found = ps.load(tmp_path / name, like=tr.init())
        assert_trees_equal(found, running)
        assert torch.any(found.params["first.weight"] != found.hook_state["ema"].params["first.weight"])
        assert_trees_equal(tr.step(found, data[2]), tr.step(running, data[2]))


def test_saving_at_every_step_or_never_gives_the_same_training(tmp_path):
    tr, data, held_out = averaged(), batches(4), ps.Validation(batches(2, seed=4), every_n_steps=2)
    saving = ps.fit(tr, data, num_steps=6, validation=held_out, listeners=[saver(tmp_path)]).state
    assert_trees_equal(saving, ps.fit(tr, data, num_steps=6).state)


def test_the_warm_up_of_an_average_goes_on_where_it_was_saved(tmp_path):
    tr = training(seeded(Plain), ps.sgd(1e-2), hooks=(ps.hooks.ema(ps.hooks.warmup_decay(0.9999)),))
    state, _ = run(tr.step, tr.init(), batches(10) * 10)
    ps.save(tmp_path / "saved", state)
    found = ps.load(tmp_path / "saved", like=tr.init(seed=3))
    after = tr.step(found, batches(1)[0])[0].hook_state["ema"]
    assert_trees_equal(after, tr.step(state, batches(1)[0])[0].hook_state["ema"])
    # the decay used after 100 averaged steps, (1 + 100) / (10 + 100)
    assert after.memory.decay.value.item() == pytest.approx(101 / 110, abs=1e-15)


def test_an_average_in_windows_counts_updates_and_no_skipped_ones():
    tr = training(seeded(Plain), ps.chain(ps.skip_nonfinite(), ps.accumulate(4), ps.sgd(0.1)), hooks=(ps.hooks.swa(),))
    good, bad = batches(8), poisoned(batches(1)[0])
    state, _ = run(tr.step, tr.init(), [*good[:3], bad, *good[3:], bad, bad])
    assert state.hook_state["swa"].memory.item() == 2


@pytest.mark.parametrize("start_step", [4, 5, 6])
def test_an_average_is_there_before_at_and_after_its_start(start_step):
    tr = training(seeded(Plain), ps.sgd(0.1), hooks=(ps.hooks.swa(start_step=start_step),))
    state, _ = run(tr.step, tr.init(), batches(5))
    params, buffers = ps.hooks.average(state, "swa")
    tr.evaluate(state, batches(1)[0], params, buffers)
    assert all(torch.isfinite(leaf).all() for leaf in ps.tree.leaves(params))


def test_the_order_in_which_training_and_average_are_put_together_does_not_matter():
    one = training(hooks=(ps.hooks.ema(0.9), ps.hooks.gradient_norm()))
    other = training(hooks=(ps.hooks.gradient_norm(), ps.hooks.ema(0.9)))
    data = batches(3)
    assert_trees_equal(run(one.step, one.init(), data)[0].hook_state["ema"], run(other.step, other.init(), data)[0].hook_state["ema"])
