"""Training draws from its key and from nothing else: neither validation, nor loading, nor a hook, nor the world can shift it."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_equal
from tests.examples_of_models import batches, training


def drawing_hook():
    """A hook that draws random numbers, as a user would write it."""

    def update(state, ctx):
        return state, ctx.replace(metrics={**ctx.metrics, "drawn": ps.rng.uniform(ps.fold_in(ctx.seed, 7), 0, (3,)).sum()})

    return ps.Hook("draws", frozenset({ps.Stage.AFTER_BATCH}), lambda state: (), update)


def params_after_thirty_steps(validate_every=None, listeners=(), hooks=()):
    tr = training(hooks=(ps.hooks.ema(0.9), *hooks))
    validation = None if validate_every is None else ps.Validation(batches(2, seed=9), every_n_steps=validate_every)
    return ps.fit(tr, batches(10), num_steps=30, validation=validation, listeners=listeners).state.params


def reads_another_run(path):
    other = training()
    ps.save(path, other.step(other.init(seed=5), batches(1)[0])[0])

    def listen(event):
        torch.rand(7)
        if event.stage is ps.Stage.AFTER_BATCH and event.batch_count % 4 == 0:
            ps.load(path, like=other.init())

    return listen


@pytest.mark.parametrize("every", [1, 7])
def test_how_often_validation_runs_changes_no_bit_of_thirty_steps(every):
    assert_trees_equal(params_after_thirty_steps(every), params_after_thirty_steps())


def test_loading_another_run_and_drawing_from_the_global_generator_in_between_change_no_bit(tmp_path):
    with torch.random.fork_rng(devices=[]):
        assert_trees_equal(params_after_thirty_steps(listeners=[reads_another_run(tmp_path / "other")]), params_after_thirty_steps())


def test_a_hook_that_draws_changes_no_bit_of_training():
    assert_trees_equal(params_after_thirty_steps(hooks=(drawing_hook(),)), params_after_thirty_steps())


def test_a_hook_that_touches_the_global_generator_changes_no_bit_of_training():
    def update(state, ctx):
        torch.rand(3)
        return state, ctx

    hook = ps.Hook("rude", frozenset({ps.Stage.BEFORE_BATCH}), lambda state: (), update)
    with torch.random.fork_rng(devices=[]):
        assert_trees_equal(params_after_thirty_steps(hooks=(hook,)), params_after_thirty_steps())


def test_the_mode_of_the_users_module_is_irrelevant():
    tr, other = training(), training()
    other.models.eval()
    state, moved = tr.init(), other.init()
    for batch in batches(3):
        state, _ = tr.step(state, batch)
        other.models.train(not other.models.training)
        moved, _ = other.step(moved, batch)
    assert_trees_equal(moved, state)


def test_members_of_a_map_over_seeds_draw_masks_of_their_own():
    kept = lambda key: ps.rng.uniform(key, 0, (1000,)) < 0.5  # noqa: E731
    keys = torch.stack([ps.fold_in(torch.tensor(seed), 3) for seed in range(4)])
    masks = torch.func.vmap(kept)(keys)
    agreement = [(masks[i] == masks[j]).double().mean().item() for i in range(4) for j in range(i)]
    # 0.5 with a deviation of 0.016
    assert all(0.4 < share < 0.6 for share in agreement)
