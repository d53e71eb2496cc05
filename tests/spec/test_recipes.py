"""Recipes round-trip, and what cannot be made again is refused by its name, with what to do."""

import inspect
import json

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.errors import SpecError, TrustError
from purestep.losses import CosineWeight, LinearWeight, PiecewiseWeight
from purestep.models import PaiNN, SchNet
from purestep.schedules import warmup_cosine_decay
from purestep.spec.families import FAMILIES, MODELS, is_from_schedule
from purestep.spec.recipes import Recipe, check_rebuildable, from_spec, to_spec
from purestep.testing import assert_trees_equal
from tests.spec import importable
from tests.spec.importable import Kept, Lost, Open, Said, Term, Transformed, counting, doubling

HERE = ("tests.spec.importable",)
WITHOUT_REQUIRED = [
    (family, kind)
    for family in MODELS
    for kind, model in MODELS[family].items()
    if all(not field.is_required() or name == "kind" for name, field in model.model_fields.items())
]
MODULES = [PaiNN(8, 1, cutoff=3.0), SchNet(8, 1), Kept(3, ("a", "b"), torch.float64), Said(3)]


def arguments_of(family, kind):
    parameters = inspect.signature(FAMILIES[family][kind], eval_str=True).parameters
    return {name: 0.1 for name, parameter in parameters.items() if is_from_schedule(parameter)}


@pytest.mark.parametrize(("family", "kind"), WITHOUT_REQUIRED, ids="-".join)
def test_a_recipe_of_each_family_is_json_and_makes_the_part(family, kind):
    function, arguments = FAMILIES[family][kind], arguments_of(family, kind)
    spec = json.loads(json.dumps(to_spec(Recipe(function, **arguments))))
    assert spec == {"kind": kind, **arguments}
    assert type(from_spec(spec, family)) is type(function(**arguments))


def test_an_optimizer_that_comes_back_from_its_recipe_is_the_same_optimizer():
    schedule = Recipe(warmup_cosine_decay, init_value=0.0, peak_value=0.1, warmup_steps=2, decay_steps=9)
    recipe = Recipe(ps.adamw, learning_rate=schedule, mu_dtype=torch.float64, mask=["w"])
    again = from_spec(to_spec(recipe), "update")
    made = ps.adamw(warmup_cosine_decay(0.0, 0.1, 2, 9), mu_dtype=torch.float64, mask=["w"])
    params = {"w": torch.ones(3), "b": torch.zeros(1)}
    for transform in (again, made):
        assert_trees_equal(transform.init(params), made.init(params))
    assert_trees_equal(again.update(params, again.init(params), params), made.update(params, made.init(params), params))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_a_module_that_keeps_its_arguments_can_be_made_again(module):
    spec = check_rebuildable(module)
    again = from_spec(json.loads(json.dumps(spec)), "model", trust=HERE)
    assert to_spec(again) == spec
    assert {name: leaf.shape for name, leaf in again.state_dict().items()} == {n: leaf.shape for n, leaf in module.state_dict().items()}


def test_proving_it_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    check_rebuildable(MODULES[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Lost(3), "does not keep its argument 'width' as an attribute; .*checkpoint_spec"),
        (Open(), r"\*\*kwargs.*checkpoint_spec"),
        (Transformed(3), "another model: 1 weights differ, layer.weight"),
        (Kept(3, (nn.Linear(1, 1),)), "names.*in_features|names.*Linear"),
        (Kept(3, {1: 2}), "keys of a recipe are text, got 1"),
        (Kept(3, object()), "names: object has no recipe"),
    ],
    ids=["lost", "open", "transformed", "inner", "keys", "object"],
)
def test_a_module_that_cannot_be_made_again_is_refused_with_the_way_out(module, message):
    with pytest.raises(SpecError, match=message):
        check_rebuildable(module)


@pytest.mark.parametrize(
    "loss",
    [
        ps.EnergyMSELoss(per_atom=True) + 10.0 * ps.ForceMSELoss(),
        LinearWeight(1.0, 2.0, 9) * ps.EnergyMAELoss() + CosineWeight(1.0, 2.0, 9) * ps.ForceL2NormLoss(name="f"),
        PiecewiseWeight([3], [1.0, 2.0]) * ps.StressHuberLoss(delta=0.1) + ps.MSELoss(prediction_key="x", target_key="y"),
        ps.ComposedLoss([ps.EnergyMSELoss()], weights=[2.0], normalize_weights=False),
        Term(power=3.0) + ps.EnergyMSELoss(),
    ],
    ids=["weights", "schedules", "keys", "not normalised", "of ours and theirs"],
)
def test_a_loss_comes_back_as_it_was(loss):
    spec = check_rebuildable(loss, HERE)
    again = from_spec(json.loads(json.dumps(spec)), "loss", trust=HERE)
    assert to_spec(again) == spec
    assert [(one.term, one.weight) for one in again.weighted()] == [
        (one.term, one.weight) for one in loss.weighted()
    ] or "Piecewise" in str(spec)
    assert again.normalize_weights == loss.normalize_weights


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Recipe, "Recipe"),
        (ps.adamw(1e-3), "the transform 'adamw' is made of functions.*Recipe"),
        (ps.hooks.ema(), "the hook 'ema' is made of functions.*Recipe"),
        (lambda batch: batch, "<lambda> is a lambda, .*top of a module, or leave it out"),
        (importable.local, "is a lambda"),
        (ps.MSELoss, "is a function and no part"),
        (3, "int has no recipe"),
    ],
    ids=["class", "transform", "hook", "lambda", "closure", "function", "number"],
)
def test_what_says_nothing_about_how_it_was_made_is_refused(thing, message):
    with pytest.raises(SpecError, match=message):
        to_spec(thing)


def test_a_loss_of_a_function_is_refused_by_the_name_of_the_function():
    from purestep.core.loss import FunctionTerm

    for fn, message in ((lambda prediction, target, batch: 0.0, "<lambda>"), (importable.mean, "tests.spec.importable.mean")):
        with pytest.raises(SpecError, match=message):
            to_spec(FunctionTerm(prediction_key="x", target_key="y", fn=fn))


def test_a_local_function_is_no_target_of_a_recipe():
    def local():
        return None

    for target in (local, lambda: None):
        with pytest.raises(SpecError, match="which no other process can import"):
            Recipe(target)


def test_a_recipe_takes_only_arguments_that_its_target_takes():
    with pytest.raises(SpecError, match=r"adamw: .*'learning_rat'"):
        Recipe(ps.adamw, learning_rat=0.1)
    with pytest.raises(SpecError, match=r"adamw.mask: .*<lambda> is a lambda"):
        to_spec(Recipe(ps.adamw, learning_rate=0.1, mask=lambda params: params))


def test_targets_of_others_need_trust_and_have_to_be_what_they_are_taken_for():
    assert from_spec(to_spec(Recipe(doubling, factor=3.0)), "update", trust=HERE).name == "doubling"
    assert from_spec(to_spec(Recipe(counting, name="c")), "hook", trust=HERE).name == "c"
    with pytest.raises(TrustError):
        from_spec(to_spec(Recipe(doubling)), "update")
    for path in ("doubling", "undeclared", "lying"):
        with pytest.raises(SpecError, match="PS503"):
            from_spec({"cls_path": f"{HERE[0]}.{path}"}, "hook", trust=HERE)


@pytest.mark.parametrize(
    ("part", "family", "message"),
    [
        ({"kind": "adamw"}, "schedule", "is no schedule"),
        ({"kind": "sgd", "momentm": 0.9, "learning_rate": 0.1}, "update", "did you mean 'momentum'"),
        ({"kind": "sgd"}, "update", "'learning_rate' is missing"),
        ({"kind": "clip_by_global_norm", "max_norm": -1}, "update", "PS105"),
        (3, "loss", "is no loss"),
        ({"cls_path": "a.B"}, "weight", "is no weight"),
    ],
)
def test_what_is_no_recipe_of_a_family_is_refused(part, family, message):
    with pytest.raises(SpecError, match=message):
        from_spec(part, family)
