"""The laws for users' own parts: good parts pass, and each law catches a part that breaks it, by name."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal, check_equivariance, check_hook, check_transform
from tests.examples_of_models import POTENTIALS, molecules, potential

PARAMS = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": {"c": torch.tensor(3.0, dtype=torch.float64)}}


def transform(update, init=lambda params: ps.tree.map(torch.zeros_like, params)):
    return ps.GradientTransform(init, update, "mine")


def momentum(updates, state, params=None, **extra):
    state = ps.tree.map(lambda s, u: 0.9 * s + u, state, updates)
    return ps.tree.map(lambda s: 1.0 * s, state), state


# --- transforms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [transform(momentum), ps.adamw(0.1), ps.chain(ps.accumulate(2), ps.clip_by_global_norm(1.0))])
def test_a_good_transform_passes(good, untouched_globals):
    check_transform(good, PARAMS)


def no_extra(updates, state, params=None):
    return updates, state


@pytest.mark.parametrize("hidden", [transform(no_extra), ps.masked(transform(no_extra), "*"), ps.chain(transform(no_extra))])
def test_a_transform_that_takes_no_extra_arguments_is_told_to(hidden):
    with pytest.raises(AssertionError, match=r"update must accept \*\*extra"):
        check_transform(hidden, PARAMS)


def writes_to_updates(updates, state, params=None, **extra):
    return ps.tree.map(lambda u: u.mul_(2.0), updates), state


def writes_to_state(updates, state, params=None, **extra):
    return updates, ps.tree.map(lambda s, u: s.add_(u), state, updates)


def draws(updates, state, params=None, **extra):
    return ps.tree.map(lambda u: u + torch.rand(()), updates), state


def draws_in_vain(updates, state, params=None, **extra):
    torch.rand(())
    return updates, state


def changes_dtype(updates, state, params=None, **extra):
    return updates, ps.tree.map(lambda s: s.float(), state)


def changes_structure(updates, state, params=None, **extra):
    return updates, {"all": state}


def drops_a_leaf(updates, state, params=None, **extra):
    return {"a": updates["a"]}, state


def flattens(updates, state, params=None, **extra):
    return {**updates, "a": updates["a"].sum()}, state


def keeps_a_view(updates, state, params=None, **extra):
    return updates, {**state, "a": updates["a"].view(2)}


def keeps_one_twice(updates, state, params=None, **extra):
    doubled = 2 * state["a"]
    return updates, {"a": doubled, "b": {"c": doubled[0]}}


def reads_the_host(updates, state, params=None, **extra):
    return ps.tree.map(lambda u: u * float(updates["a"].sum()), updates), state


def returns_updates_alone(updates, state, params=None, **extra):
    return updates


BAD_UPDATES = {
    reads_the_host: r"mine: update cannot be traced; it must not read numbers from tensors, .* torch\.where",
    returns_updates_alone: r"mine: update must return the pair \(updates, state\), got a dict",
    writes_to_updates: r"mine: update changed its arguments: updates\.a differs in bits",
    writes_to_state: "mine: update changed its arguments|mine: the state",
    draws: "mine: update, called twice, gave two results",
    draws_in_vain: "mine: update drew from torch's global generator",
    changes_dtype: r"mine: the state after an update: a is float32\[2\] on cpu, expected float64\[2\] on cpu",
    changes_structure: r"mine: the state after an update: the structure differs: unexpected leaves \['all\.a'",
    drops_a_leaf: r"mine: updates have the leaves \['a'\], the parameters \['a', 'b\.c'\]",
    flattens: r"mine: the update of a has shape \(\), the parameter \(2,\)",
    keeps_a_view: r"mine: the results of update: state\.a is a view of the argument updates\.a",
    keeps_one_twice: r"mine: the state of update: b\.c shares its memory with a",
}


@pytest.mark.parametrize("update", BAD_UPDATES, ids=lambda update: update.__name__)
def test_a_transform_that_breaks_a_law_is_told_which(update):
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError, match=BAD_UPDATES[update]):
        check_transform(transform(update), ps.tree.clone(PARAMS))


def test_a_transform_that_keeps_a_number_is_told_to_keep_a_tensor():
    counting = transform(lambda updates, state, params=None, **extra: (updates, state), init=lambda params: {"count": 0})
    with pytest.raises(AssertionError, match=r"mine: the state of init: count is of type int; .* torch\.tensor"):
        check_transform(counting, PARAMS)


def test_a_state_that_shares_memory_with_the_parameters_is_refused():
    with pytest.raises(AssertionError, match="mine: the state of init: a is a view of the argument a; clone it"):
        check_transform(transform(momentum, init=lambda params: ps.tree.map(lambda p: p.view(p.shape), params)), PARAMS)


def test_a_gate_that_lets_nan_into_its_own_state_passes_as_what_stands_before_it_may_move():
    check_transform(ps.skip_nonfinite(), PARAMS)


# --- hooks ----------------------------------------------------------------------------------------------------------


def hook(update, stage=ps.Stage.AFTER_OPTIMIZER_STEP, init=lambda state: torch.zeros((), dtype=torch.float64)):
    return ps.Hook("mine", frozenset({stage}), init, update)


def test_a_good_hook_passes(untouched_globals):
    check_hook(hook(lambda state, ctx: (state + ctx.loss.total, ctx.with_metrics(sum=state))))


BAD_HOOKS = {
    "changes dtype": (lambda state, ctx: (state.float(), ctx), "the state after a step: step: hook_state.mine was .* became .*float32"),
    "counts in a metric's name": (
        lambda state, ctx: (state, ctx.replace(metrics={**ctx.metrics, f"m{COUNT.pop()}": state})),
        "the metrics of a step: the structure differs|called twice",
    ),
    "draws": (lambda state, ctx: (state + torch.rand(()), ctx), "called twice, gave two results"),
    "keeps a parameter": (
        lambda state, ctx: (ctx.params["layer"]["bias"][0], ctx),
        r"the step's state: hook_state\.mine shares its memory with params\.layer\.bias; clone one of them",
    ),
    "writes": (lambda state, ctx: (state.add_(1.0), ctx), "changed its arguments|after a rejected batch"),
    "changes shape": (
        lambda state, ctx: (ctx.params["layer"]["bias"] + state.sum(), ctx),
        r"the state after a step: step: hook_state\.mine was .* became \(torch\.float64, \(2,\)",
    ),
}
COUNT = list(range(20))


@pytest.mark.parametrize("name", BAD_HOOKS)
def test_a_hook_that_breaks_a_law_is_told_which(name):
    update, message = BAD_HOOKS[name]
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError, match=message):
        check_hook(hook(update))


def test_a_hook_may_be_checked_on_a_loss_and_a_batch_of_its_own():
    seen = hook(lambda state, ctx: (state + ctx.batch.sum(), ctx), ps.Stage.BEFORE_FORWARD)
    check_hook(seen, loss_fn=lambda w, x: (w * x).square().mean(), params=torch.ones((), dtype=torch.float64), batch=torch.ones(3))


# --- symmetry -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(POTENTIALS))
def test_the_shipped_potentials_are_equivariant(name, untouched_globals):
    check_equivariance(potential(name), molecules((4, 3, 1)))


def per_graph(batch, values):
    return torch.zeros(batch.num_graphs, 1, dtype=values.dtype).index_add(0, batch.batch, values.unsqueeze(-1))


def centred(batch):
    counts = (batch.ptr[1:] - batch.ptr[:-1]).unsqueeze(-1)
    centre = torch.zeros(batch.num_graphs, 3, dtype=torch.float64).index_add(0, batch.batch, batch.positions) / counts
    return batch.positions - centre[batch.batch]


BROKEN = {
    "rotation, energy": lambda batch: {"energy": per_graph(batch, centred(batch)[:, 0].square()), "forces": centred(batch)},
    "rotation, forces": lambda batch: {"energy": per_graph(batch, centred(batch).norm(dim=1)), "forces": centred(batch).abs()},
    "translation, energy": lambda batch: {"energy": per_graph(batch, batch.positions.norm(dim=1)), "forces": centred(batch)},
    "permutation of atoms, forces": lambda batch: {
        "energy": per_graph(batch, centred(batch).norm(dim=1)),
        "forces": centred(batch) * torch.arange(len(batch.batch)).unsqueeze(-1),
    },
    "rotation, NaN": lambda batch: {"energy": per_graph(batch, batch.positions[:, 0] * float("nan")), "forces": centred(batch)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_symmetry_is_named_with_the_prediction(name):
    symmetry, _, prediction = name.partition(", ")
    prediction = prediction.replace("NaN", "energy")
    with pytest.raises(AssertionError, match=f"under {symmetry}, {prediction} is off by"):
        check_equivariance(BROKEN[name], molecules())


def test_predictions_of_other_names_are_checked_where_told():
    fn = lambda batch: {"e": per_graph(batch, centred(batch).norm(dim=1)), "dipole": centred(batch)}  # noqa: E731
    check_equivariance(fn, molecules(), invariant=("e",), vectors=("dipole",))
    with pytest.raises(AssertionError, match=r"fn returned \['dipole', 'e'\], without \['energy', 'forces'\]"):
        check_equivariance(fn, molecules())


def test_a_tensor_by_structure_turns_from_both_sides():
    def fn(batch):
        outer = centred(batch).unsqueeze(-1) * centred(batch).unsqueeze(-2)
        summed = torch.zeros(batch.num_graphs, 3, 3, dtype=torch.float64).index_add(0, batch.batch, outer)
        return {"energy": per_graph(batch, centred(batch).norm(dim=1)), "forces": centred(batch), "stress": summed}

    check_equivariance(fn, molecules())
    one_sided = lambda batch: fn(batch) | {"stress": fn(batch)["stress"] + torch.eye(3).roll(1, 0)}  # noqa: E731
    with pytest.raises(AssertionError, match="under rotation, stress is off by"):
        check_equivariance(one_sided, molecules())


# --- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0), "leaf differs in bits"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, r"a is float32\[2\] on cpu, expected float32\[3\]"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, r"unexpected leaves \['a'\], missing leaves \['b'\]"),
        ([torch.ones(2)], (torch.ones(2),), "the structure differs"),
        ({"n": 1}, {"n": 2}, "n is 1, expected 2"),
        ({"n": 1}, {"n": torch.tensor(1)}, "n is a int, expected a Tensor"),
    ],
)
def test_trees_that_differ_are_told_apart_with_the_leaf(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_trees_equal(actual, expected)


def test_nan_equals_nan_bit_for_bit_and_in_closeness():
    nan = torch.tensor([float("nan"), 1.0])
    assert_trees_equal({"a": nan}, {"a": nan.clone()})
    assert_trees_close({"a": nan}, {"a": nan + 1e-9}, rtol=1e-6, atol=0.0)


def test_closeness_has_an_end_and_whole_numbers_have_none():
    with pytest.raises(AssertionError, match=r"a differs by 0\.5, allowed are 0\.1 \+ 0\.1"):
        assert_trees_close({"a": torch.tensor(1.5)}, {"a": torch.tensor(1.0)}, rtol=0.1, atol=0.1)
    with pytest.raises(AssertionError, match="leaf differs by 1"):
        assert_trees_close(torch.tensor(3), torch.tensor(2), rtol=10.0, atol=10.0)
