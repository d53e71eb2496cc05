"""The models of the parts say what the functions say: names, defaults, descriptions."""

import functools
import inspect
import json
import warnings

import pytest
import torch

from purestep.spec.families import FAMILIES, MODELS, is_from_schedule
from purestep.spec.parts import make
from purestep.spec.reading import schema

ALL = [(family, kind) for family, models in MODELS.items() for kind in models]
WITHOUT_REQUIRED = [
    (family, kind) for family, kind in ALL if [n for n, f in MODELS[family][kind].model_fields.items() if f.is_required()] == ["kind"]
]


def parameters_of(family, kind):
    return inspect.signature(FAMILIES[family][kind], eval_str=True).parameters


def test_only_what_takes_functions_or_trees_has_no_model():
    assert {kind for family in FAMILIES for kind in FAMILIES[family].keys() - MODELS[family].keys()} == {
        *("conditionally_mask", "conditionally_transform", "inject_hyperparams", "monitor", "named_chain", "snapshot"),
        *("elastic_weight_consolidation", "penalty"),
        "ForceErrorsByElement",
    }


@pytest.mark.parametrize(("family", "kind"), ALL, ids="-".join)
def test_the_arguments_of_a_model_are_arguments_of_its_function(family, kind):
    names = {field.alias for name, field in MODELS[family][kind].model_fields.items() if name not in ("kind", "weight")}
    assert names <= parameters_of(family, kind).keys()


@pytest.mark.parametrize(("family", "kind"), ALL, ids="-".join)
def test_a_field_is_required_where_the_function_requires_it(family, kind):
    required = {field.alias for name, field in MODELS[family][kind].model_fields.items() if name != "kind" and field.is_required()}
    assert required == {name for name, p in parameters_of(family, kind).items() if p.default is p.empty and not is_from_schedule(p)}


@pytest.mark.parametrize(("family", "kind"), WITHOUT_REQUIRED, ids="-".join)
def test_a_part_of_which_nothing_is_said_leaves_all_to_the_function(family, kind, monkeypatch):
    called = {}

    @functools.wraps(FAMILIES[family][kind])
    def function(**arguments):
        called.update(arguments)

    monkeypatch.setitem(FAMILIES[family], kind, function)
    make(MODELS[family][kind](kind=kind), "", 1e-3)
    assert called == {name: 1e-3 for name, p in parameters_of(family, kind).items() if is_from_schedule(p)}


@pytest.mark.parametrize(("family", "kind"), WITHOUT_REQUIRED, ids="-".join)
def test_a_part_can_be_read_back_once_its_defaults_are_written_out(family, kind):
    part = MODELS[family][kind](kind=kind)
    assert MODELS[family][kind].model_validate_json(part.model_dump_json(by_alias=True)) == part


def test_what_a_part_says_reaches_the_function():
    part = MODELS["update"]["scale_by_adam"].model_validate_json('{"kind": "scale_by_adam", "mu_dtype": "bfloat16", "b1": 0.5}')
    state = make(part, "").init({"w": torch.ones(2)})
    assert state.mu["w"].dtype is torch.bfloat16


def test_a_learning_rate_that_is_left_out_is_the_schedule_of_the_strategy():
    part = MODELS["update"]["lookahead"].model_validate_json(
        '{"kind": "lookahead", "fast_optimizer": {"kind": "sgd"}, "sync_period": 5, "slow_step_size": 0.5}'
    )
    make(part, "", 1e-3)
    with pytest.raises(Exception, match="'learning_rate' is missing"):
        make(part, "")


def test_the_schema_is_json_and_describes_arguments_in_the_words_of_the_docstrings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = schema()
    json.dumps(document, allow_nan=False)
    clip = document["$defs"]["clip_by_global_norm"]
    assert clip["additionalProperties"] is False
    assert clip["properties"]["max_norm"]["description"]
    assert document["$defs"]["adamw"]["properties"]["b1"]["default"] == 0.9
    assert document["properties"]["dataset"]["$ref"] == "#/$defs/Dataset"
