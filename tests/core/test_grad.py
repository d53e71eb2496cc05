"""Value and gradient: two engines with one result."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core.grad import value_and_grad
from purestep.testing import assert_trees_close, assert_trees_equal

PARAMS = {"a": torch.tensor([1.0, 2.0], dtype=torch.float64), "b": {"c": torch.tensor(3.0, dtype=torch.float64)}}
ENGINES = ("autograd", "func")
both = pytest.mark.parametrize("engine", ENGINES)


def loss(params):
    value = (params["a"] ** 3).sum() * params["b"]["c"]
    return value, {"twice": 2 * value, "text": "note", "number": torch.tensor(4)}


@both
def test_the_gradient_is_that_worked_by_hand(engine):
    found = value_and_grad(loss, PARAMS, engine)
    assert found.value.item() == 27.0
    assert found.grads["a"].tolist() == [9.0, 36.0]
    assert found.grads["b"]["c"].item() == 9.0
    assert found.unreached == ()


@both
def test_what_comes_out_is_detached_and_the_parameters_are_as_before(engine):
    before = {path: (leaf.clone(), leaf.requires_grad, leaf.grad) for path, leaf in (("a", PARAMS["a"]), ("c", PARAMS["b"]["c"]))}
    found = value_and_grad(loss, PARAMS, engine)
    assert not any(leaf.requires_grad for leaf in (found.value, found.aux["twice"], *found.grads["b"].values(), found.grads["a"]))
    assert (found.aux["text"], found.aux["twice"].item()) == ("note", 54.0)
    assert torch.equal(PARAMS["a"], before["a"][0])
    assert (PARAMS["a"].requires_grad, PARAMS["a"].grad) == before["a"][1:]


def force_loss(params):
    """Differentiates inside, as a potential does."""
    x = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    energy = (params["a"] * x).sin().sum() * params["b"]["c"]
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy + force.square().sum(), {}


def test_the_engines_agree_on_second_derivatives():
    one, other = (value_and_grad(force_loss, PARAMS, engine) for engine in ENGINES)
    # the same products in another order
    assert_trees_close((other.value, other.grads), (one.value, one.grads), rtol=1e-14, atol=1e-14)


@both
def test_the_gradient_is_found_where_gradients_are_switched_off(engine):
    with torch.no_grad():
        assert value_and_grad(loss, PARAMS, engine).grads["b"]["c"].item() == 9.0


@both
def test_a_leaf_that_the_value_does_not_depend_on_has_gradient_zero_and_is_named(engine):
    found = value_and_grad(lambda params: (params["a"].sum(), {}), PARAMS, engine)
    assert found.unreached == ("b.c",)
    assert_trees_equal(found.grads["b"]["c"], torch.zeros((), dtype=torch.float64))


@both
@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda params: (params["a"], {}), r"0-d tensor, got shape \(2,\)"),
        (lambda params: (1.0, {}), "0-d tensor, got float"),
        (lambda params: (torch.tensor(1.0), {}), "depends on no trainable parameter"),
        (lambda params: (params["a"].detach().sum(), {}), "depends on no trainable parameter"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_says_why(engine, fn, message):
    with pytest.raises(ValueError, match=message):
        value_and_grad(fn, PARAMS, engine)


def test_auto_takes_the_engine_that_vmap_needs():
    stacked = {"a": torch.stack([PARAMS["a"], 2 * PARAMS["a"]]), "b": {"c": torch.stack([PARAMS["b"]["c"]] * 2)}}
    grads = torch.func.vmap(lambda a, c: value_and_grad(lambda p: (loss(p)[0], {}), {"a": a, "b": {"c": c}}).grads["a"])(
        stacked["a"], stacked["b"]["c"]
    )
    assert grads.tolist() == [[9.0, 36.0], [36.0, 144.0]]


@both
def test_a_traced_gradient_has_the_eager_bits(engine):
    fn = lambda a: value_and_grad(lambda p: (loss({"a": p, "b": PARAMS["b"]})[0], {}), a, engine).grads  # noqa: E731
    assert torch.equal(make_fx(fn)(PARAMS["a"])(PARAMS["a"] + 1), fn(PARAMS["a"] + 1))


def test_gradients_of_gradients_go_through_the_func_engine():
    inner = lambda a: value_and_grad(lambda p: ((p**3).sum(), {}), a, "func").grads.sum()  # noqa: E731
    assert torch.func.grad(inner)(PARAMS["a"]).tolist() == [6.0, 12.0]
