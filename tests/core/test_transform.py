"""The chain: order, names, gates and the hold rule; hyperparameters; metrics."""

import pytest
import torch

import purestep as ps
from purestep.core.schedule import Hyperparam, init_hyperparam, next_hyperparam
from purestep.core.transform import EmptyState, collect_metrics
from purestep.errors import TransformError
from purestep.testing import assert_trees_equal

PARAMS = {"w": torch.tensor([1.0, -2.0])}
GRADS = {"w": torch.tensor([0.5, 0.25])}


def gate(apply, reject=False, name="gate"):
    """A gate that always gives the same verdict, and counts."""

    def update(updates, state, params=None, **extra):
        return ps.Gated(updates, torch.tensor(apply), torch.tensor(reject)), state + 1

    return ps.GradientTransform(lambda params: torch.tensor(0), update, name)


def passing(name, **options):
    """A transform that passes updates on."""
    return ps.GradientTransform(lambda params: EmptyState(), lambda updates, state, params=None, **extra: (updates, state), name, **options)


def test_parts_run_in_the_order_given():
    add = ps.stateless(lambda updates, params: ps.tree.map(lambda u: u + 1, updates), "add")
    twice = ps.scale(2.0)
    for parts, expected in (((add, twice), 3.0), ((twice, add), 2.0)):
        transform = ps.chain(*parts)
        assert transform.update(GRADS, transform.init(PARAMS), PARAMS)[0]["w"][0].item() == expected


def test_a_function_of_a_leaf_and_its_parameter_is_a_transform():
    shrink = ps.stateless_with_tree_map(lambda update, param: update - 0.5 * param, "shrink")
    updates, _ = shrink.update({"w": torch.tensor([1.0])}, shrink.init({"w": torch.tensor([4.0])}), {"w": torch.tensor([4.0])})
    assert (shrink.name, updates["w"].tolist()) == ("shrink", [-1.0])


def test_a_second_part_of_one_name_gets_a_number():
    assert list(ps.chain(ps.scale(1.0), ps.trace(0.9), ps.scale(1.0)).init(PARAMS)) == ["scale", "trace", "scale_2"]


def test_a_chain_of_nothing_is_the_identity():
    transform = ps.chain()
    assert transform.update(GRADS, transform.init(PARAMS), PARAMS) == (GRADS, {})


def test_a_chain_without_gates_returns_plain_updates():
    transform = ps.chain(ps.scale(1.0), ps.chain(ps.trace(0.9)))
    assert not isinstance(transform.update(GRADS, transform.init(PARAMS), PARAMS)[0], ps.Gated)


def test_once_a_gate_says_no_later_parts_stay_and_earlier_ones_moved():
    transform = ps.chain(ps.trace(0.9), gate(False), ps.scale_by_adam())
    state = transform.init(PARAMS)
    result, after = transform.update(GRADS, state, PARAMS)
    assert (result.apply.item(), result.reject.item()) == (False, False)
    assert_trees_equal(after["scale_by_adam"], state["scale_by_adam"])
    assert torch.equal(after["trace"].trace["w"], GRADS["w"])
    assert after["gate"].item() == 1


def test_a_vetoed_update_is_negative_zero_so_that_every_bit_of_a_parameter_stays():
    params = {"w": torch.tensor([-0.0, 0.0, 1e-45, float("inf")])}
    transform = ps.chain(gate(False))
    result, _ = transform.update(ps.tree.map(torch.ones_like, params), transform.init(params), params)
    assert torch.signbit(result.updates["w"]).all()
    assert_trees_equal(ps.apply_updates(params, result), params)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((True, False), (True, False), (True, False)),
        ((True, False), (False, True), (False, True)),
        ((False, False), (False, True), (False, False)),
        ((False, True), (True, False), (False, True)),
    ],
)
def test_verdicts_of_two_gates_join_and_a_gate_behind_a_closed_one_rejects_nothing(first, second, expected):
    transform = ps.chain(gate(*first, name="first"), gate(*second, name="second"))
    result, _ = transform.update(GRADS, transform.init(PARAMS), PARAMS)
    assert (result.apply.item(), result.reject.item()) == expected


def test_nested_chains_pass_a_verdict_on_and_hold_what_follows():
    transform = ps.chain(ps.chain(gate(False, True), name="inner"), ps.trace(0.9))
    state = transform.init(PARAMS)
    result, after = transform.update(GRADS, state, PARAMS)
    assert result.reject
    assert_trees_equal(after["trace"], state["trace"])


def test_needs_of_the_parts_are_those_of_the_chain_and_missing_ones_are_named_before_any_work():
    needy = passing("needy", needs=frozenset({"value"}))
    transform = ps.chain(ps.chain(needy, name="inner"), name="outer")
    assert transform.needs == {"value"}
    with pytest.raises(TransformError, match="outer needs value: pass value="):
        transform.update(GRADS, transform.init(PARAMS), PARAMS)


def test_a_state_of_another_chain_is_refused():
    transform = ps.chain(ps.scale(1.0))
    with pytest.raises(TransformError, match=r"the state has parts \['trace'\], the chain has \['scale'\]"):
        transform.update(GRADS, ps.chain(ps.trace(0.9)).init(PARAMS), PARAMS)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (ps.adam, r"the function adam; call it: adam\(\.\.\.\)"),
        ([ps.scale(1.0)], r"a list; give the parts one after another: chain\(\*parts\)"),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1), "torch's SGD, which changes parameters in place; take the one of this package"),
        (0.1, "0.1"),
    ],
    ids=["function", "list", "of torch", "number"],
)
def test_a_part_that_is_no_transform_is_told_what_to_do(part, told):
    with pytest.raises(TransformError, match=f"^outer: parts are gradient transforms such as .*, got {told}$"):
        ps.chain(part, name="outer")


def test_loss_scales_of_all_parts_multiply():
    double = passing("double", scale_loss=lambda loss, state: 2 * loss)
    transform = ps.chain(double, ps.chain(double))
    assert transform.scale_loss(torch.tensor(3.0), transform.init(PARAMS)).item() == 12.0
    assert ps.chain(ps.scale(1.0)).scale_loss is None


def test_updates_wider_than_a_parameter_are_added_wide_and_rounded_once():
    params, update = {"w": torch.tensor([1.0], dtype=torch.bfloat16)}, {"w": torch.tensor([2**-8 + 2**-17])}
    after = ps.apply_updates(params, update)["w"]
    # rounded to bfloat16 first, the update would be 2^-8, and the sum a tie that goes down
    assert (after.dtype, after.item()) == (torch.bfloat16, 1 + 2**-7)


def test_a_constant_hyperparameter_is_a_leaf_and_a_scheduled_one_counts():
    constant, scheduled = init_hyperparam(0.1, PARAMS), init_hyperparam(lambda count: count.double() * 2, PARAMS)
    assert [leaf.dtype for leaf in ps.tree.leaves(constant)] == [torch.float64]
    assert next_hyperparam(0.1, constant) is constant
    seen = []
    for _ in range(3):
        scheduled = next_hyperparam(lambda count: count.double() * 2, scheduled)
        seen.append(scheduled.value.item())
    assert seen == [0.0, 2.0, 4.0]


def test_set_hyperparams_replaces_values_everywhere_and_changes_nothing_else():
    transform = ps.chain(ps.adamw(0.1), ps.sgd(0.2))
    state = transform.init(PARAMS)
    new = ps.set_hyperparams(state, learning_rate=0.5)
    found = [leaf for leaf in _hyperparams(new) if leaf.value.item() == 0.5]
    assert len(found) == 2
    assert ps.tree.structure(new) == ps.tree.structure(state)
    assert_trees_equal(ps.set_hyperparams(new, adamw__learning_rate=0.1, sgd__learning_rate=0.2), state)


def _hyperparams(state):
    if isinstance(state, Hyperparam):
        return [state]
    inside = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else ()
    return [found for child in inside for found in _hyperparams(child)]


def test_set_hyperparams_singles_one_out_by_its_path():
    state = ps.chain(ps.adamw(0.1), ps.sgd(0.2)).init(PARAMS)
    new = ps.set_hyperparams(state, sgd__learning_rate=0.5)
    assert_trees_equal(new["adamw"], state["adamw"])


def test_set_hyperparams_lists_the_known_and_refuses_the_scheduled():
    state = ps.sgd(ps.schedules.linear(0.1, 0.0, 10)).init(PARAMS)
    with pytest.raises(KeyError, match="no hyperparameter 'lr'"):
        ps.set_hyperparams(state, lr=0.5)
    with pytest.raises(ValueError, match="is driven by a schedule"):
        ps.set_hyperparams(state, learning_rate=0.5)


def test_metrics_bear_the_name_of_the_chain_that_holds_the_part():
    optimizer = ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(0.1))
    names = collect_metrics(optimizer.init(PARAMS), optimizer.name)
    assert {"optimizer/adamw/lr", "update/grad_norm"} <= set(names)
