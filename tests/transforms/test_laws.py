"""What must hold for every transform and every optimizer in the tables."""

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.checkpoint import load, save
from purestep.core import tree
from purestep.core.transform import Gated, apply_updates, chain, set_hyperparams
from purestep.optimizers import OPTIMIZERS
from purestep.transforms import skip_nonfinite
from tests.transform_examples import (
    LEARNING_RATE,
    TABLE,
    assert_bitwise,
    assert_close,
    example,
    example_params,
    extras,
    gradient,
    plain,
    quadratic,
    run,
)

over_the_tables = pytest.mark.parametrize("name", sorted(TABLE))
over_the_optimizers = pytest.mark.parametrize("name", [f"optimizers.{name}" for name in sorted(OPTIMIZERS)])


def update_of(name):
    """The update as a function of trees, and arguments to call it with in the middle of a run."""
    transform = example(name)
    params, state = run(transform, example_params())
    return lambda params, state: transform.update(gradient(params), state, params, **extras(params)), (params, state)


@over_the_tables
def test_inputs_stay_as_they_are_and_outputs_repeat(name, untouched_globals):
    transform, params = example(name), example_params()
    state, grads, extra = transform.init(params), gradient(params), extras(params)
    before = tree.clone((params, state, grads))
    first = transform.update(grads, state, params, **extra)
    second = transform.update(grads, state, params, **extra)
    assert_bitwise((params, state, grads), before)
    assert_bitwise(first, second)
    assert_bitwise(transform.init(params), before[1])


@over_the_tables
def test_structure_dtypes_and_shapes_of_the_state_never_change(name):
    transform, params = example(name), example_params()
    state = transform.init(params)
    _, later = run(transform, params)
    assert tree.structure(later) == tree.structure(state)
    describe = lambda leaf: (leaf.dtype, leaf.device, leaf.shape)  # noqa: E731
    assert list(map(describe, tree.leaves(later))) == list(map(describe, tree.leaves(state)))


@over_the_tables
def test_every_leaf_of_the_state_has_a_path_of_its_own(name):
    transform, params = example(name), example_params()
    assert len(set(tree.paths(transform.init(params)))) == len(tree.leaves(transform.init(params)))


@over_the_tables
def test_updates_have_the_structure_and_the_shapes_of_the_parameters(name):
    transform, params = example(name), example_params()
    updates, _ = transform.update(gradient(params), transform.init(params), params, **extras(params))
    assert tree.structure(plain(updates)) == tree.structure(params)
    assert [u.shape for u in tree.leaves(plain(updates))] == [p.shape for p in tree.leaves(params)]


@over_the_tables
def test_no_output_shares_memory_with_an_input_or_with_another_output(name):
    transform, params = example(name), example_params()
    _, state = run(transform, params)
    grads = gradient(params)
    updates, new = transform.update(grads, state, params, **extras(params))
    inputs = {leaf.data_ptr(): leaf for leaf in tree.leaves((grads, state, params)) if leaf.numel()}
    passed = [leaf for leaf in tree.leaves((updates, new)) if leaf.numel() and leaf.data_ptr() in inputs]
    assert all(leaf is inputs[leaf.data_ptr()] for leaf in passed)
    stored = [leaf.untyped_storage().data_ptr() for leaf in tree.leaves(new) if leaf.numel()]
    assert len(set(stored)) == len(stored)
    initial = [leaf.untyped_storage().data_ptr() for leaf in tree.leaves((transform.init(params), params)) if leaf.numel()]
    assert len(set(initial)) == len(initial)


# A line search differentiates the loss, which without parameters has no derivative.
without_line_searches = [name for name in sorted(TABLE) if "linesearch" not in name and name != "optimizers.lbfgs"]


@pytest.mark.parametrize("name", without_line_searches)
def test_an_empty_tree_is_possible(name):
    transform = example(name)
    updates, _ = transform.update({}, transform.init({}), {}, **extras({}) | {"value": torch.tensor(1.0)})
    assert plain(updates) == {}


@over_the_tables
def test_bfloat16_parameters_keep_their_dtype_and_finite_values(name):
    transform, params = example(name), example_params(torch.bfloat16)
    moved, _ = run(transform, params)
    assert all(leaf.dtype == torch.bfloat16 and leaf.isfinite().all() for leaf in tree.leaves(moved))


@over_the_tables
def test_zero_updates_give_finite_updates(name):
    transform, params = example(name), example_params()
    zeros, state = tree.zeros_like(params), transform.init(params)
    for _ in range(2):
        updates, state = transform.update(zeros, state, params, **extras(params))
    assert all(leaf.isfinite().all() for leaf in tree.leaves(plain(updates)))


@over_the_tables
def test_a_rejected_batch_leaves_parameters_and_state_as_they_are(name):
    transform, params = chain(skip_nonfinite(), example(name)), example_params()
    params, state = run(transform, params)
    bad = tree.map(lambda g: torch.full_like(g, float("nan")), params)
    updates, new = transform.update(bad, state, params, **extras(params) | {"value": torch.tensor(float("inf"))})
    assert isinstance(updates, Gated)
    assert_bitwise(apply_updates(params, updates), params)
    later = list(state)[1]
    assert_bitwise(new[later], state[later])


def test_all_states_come_back_from_a_checkpoint_bitwise(tmp_path):
    params = example_params()
    states = {name: run(example(name), params)[1] for name in TABLE}
    save(tmp_path / "checkpoint", states)
    assert_bitwise(load(tmp_path / "checkpoint", like={name: example(name).init(params) for name in TABLE}), states)


# A line search is a long loop, unrolled in the trace.
LONG_TRACES = {"optimizers.lbfgs", "transforms.scale_by_zoom_linesearch"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG_TRACES else ()) for name in sorted(TABLE)])
def test_a_traced_update_gives_the_eager_numbers(name):
    update, arguments = update_of(name)
    leaves, structure = tree.flatten(arguments)
    flat = lambda *leaves: tree.leaves(update(*tree.unflatten(structure, leaves)))  # noqa: E731
    traced = make_fx(flat)(*leaves)
    assert_close(list(traced(*leaves)), flat(*leaves))


@pytest.mark.slow
@over_the_tables
def test_a_compiled_update_gives_the_eager_numbers(name):
    torch._dynamo.reset()
    update, arguments = update_of(name)
    compiled = torch.compile(update, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*arguments), update(*arguments))


@over_the_tables
def test_a_mapped_update_gives_the_numbers_of_each_member(name):
    update, (params, state) = update_of(name)
    leaves, structure = tree.flatten((params, state))
    varied = [[leaf * (1 + 0.01 * i) if leaf.is_floating_point() else leaf for leaf in leaves] for i in range(3)]
    flat = lambda *leaves: tuple(tree.leaves(update(*tree.unflatten(structure, leaves))))  # noqa: E731
    mapped = vmap(flat)(*(torch.stack(column) for column in zip(*varied, strict=True)))
    for i, member in enumerate(varied):
        # products of stacked small matrices may be summed in another order
        assert_close([leaf[i] for leaf in mapped], list(flat(*member)), rtol=1e-9, atol=1e-11)


@over_the_optimizers
def test_an_optimizer_descends_a_quadratic(name):
    params = example_params()
    moved, _ = run(example(name), params, steps=30)
    assert quadratic(moved) < quadratic(params)


@over_the_optimizers
def test_an_optimizer_is_a_chain_that_bears_its_name(name):
    assert example(name).name == name.removeprefix("optimizers.")


# Rprop's is the size of the first steps only.
with_learning_rate = [f"optimizers.{name}" for name in sorted(OPTIMIZERS) if name != "rprop"]


@pytest.mark.parametrize("name", with_learning_rate)
def test_a_learning_rate_given_as_a_number_is_a_leaf_that_can_be_set(name):
    transform, params = example(name), example_params()
    state = transform.init(params)
    doubled = set_hyperparams(state, learning_rate=2 * LEARNING_RATE)
    pairs = list(zip(tree.leaves(doubled), tree.leaves(state), strict=True))
    assert all(new.dtype == old.dtype and new.shape == old.shape for new, old in pairs)
    assert {float(new) for new, old in pairs if new.ndim == 0 and new != old} == {2 * LEARNING_RATE}
