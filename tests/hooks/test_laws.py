"""What must hold for every hook in the table."""

import pytest
import torch

import purestep as ps
from purestep.core.hook import MAY_REPLACE
from purestep.testing import assert_trees_equal, check_hook
from purestep.testing.hook_laws import line, points, squared_error_of_line
from tests.hooks.examples import CASES, NAMES, example

over_the_table = pytest.mark.parametrize("name", NAMES)


def small_step(name, *transforms):
    """Step, first state and batch of a small training with this hook."""
    case = {"loss_fn": squared_error_of_line, "batch": points()} | CASES.get(name, {})
    optimizer = ps.chain(*transforms, ps.sgd(0.05))
    hooks = (example(name),)
    return ps.make_step(case["loss_fn"], optimizer, hooks), ps.init_state(line(), optimizer, hooks, seed=3), case["batch"]


@over_the_table
def test_a_hook_keeps_the_laws(name, untouched_globals):
    check_hook(example(name), **CASES.get(name, {}))


@over_the_table
def test_a_hook_works_on_a_training_captured_by_tracing_with_the_eager_bits(name):
    step, state, batch = small_step(name)
    captured = ps.compile(step, backend="eager")
    for _ in range(3):
        result, (state, metrics) = captured(state, batch), step(state, batch)
        assert_trees_equal(result, (state, metrics))


@over_the_table
def test_the_state_of_a_hook_survives_a_checkpoint_bitwise(name, tmp_path):
    step, state, batch = small_step(name)
    state, _ = step(state, batch)
    ps.save(tmp_path / "checkpoint", state)
    loaded = ps.load(tmp_path / "checkpoint", like=state)
    assert_trees_equal(loaded, state)
    assert_trees_equal(step(loaded, batch), step(state, batch))


@over_the_table
def test_a_hook_leaves_no_trace_of_a_batch_that_is_rejected_for_nan(name):
    step, state, batch = small_step(name, ps.skip_nonfinite())
    state, _ = step(state, batch)
    bad = ps.tree.map(lambda leaf: torch.full_like(leaf, float("nan")) if leaf.is_floating_point() else leaf, batch)
    after, _ = step(state, bad)
    assert_trees_equal((after.params, after.hook_state), (state.params, state.hook_state))


OBSERVING = [name for name in NAMES if not any(MAY_REPLACE[stage] for stage in example(name).stages)]


@pytest.mark.parametrize("name", OBSERVING)
def test_a_hook_that_may_replace_nothing_does_not_change_training(name):
    step, state, batch = small_step(name)
    bare = ps.make_step(squared_error_of_line, ps.chain(ps.sgd(0.05)))
    assert_trees_equal(step(state, batch)[0].params, bare(state, batch)[0].params)


SHAPELESS = sorted(set(NAMES) - {"elastic_weight_consolidation", "random_rotation"})


@pytest.mark.parametrize("name", SHAPELESS)
def test_a_hook_runs_where_the_parameters_are_one_tensor(name):
    def loss(params, batch):
        error = (params * batch["x"]).square().sum(-1)
        return ps.Sums(error.sum(), torch.full_like(error.sum(), 5.0), error)

    step, state = ps.make_step(loss, ps.sgd(0.01), (example(name),)), ps.init_state(torch.ones(()), ps.sgd(0.01), (example(name),))
    after, metrics = step(state, {"x": torch.ones(5, 3)})
    assert after.params < 1.0
    assert all(value.shape == () for value in metrics.values())
