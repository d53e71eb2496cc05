"""Learning rates by layer."""

import pytest
import torch

from purestep.core.transform import chain
from purestep.errors import PatternError
from purestep.optimizers import adamw
from purestep.transforms import layerwise_decay

PARAMS = {
    "embed": {"weight": torch.zeros(4, 2)},
    "blocks": {"0": {"w": torch.zeros(2, 2)}, "1": {"w": torch.zeros(2, 2)}, "10": {"w": torch.zeros(2, 2)}},
    "head": {"bias": torch.zeros(2)},
}


def factors(params, *args, **kwargs):
    transform = layerwise_decay(*args, **kwargs)
    state = transform.init(params)
    updates, _ = transform.update(torch.utils._pytree.tree_map(torch.ones_like, params), state)
    return {
        "embed": float(updates["embed"]["weight"][0, 0]),
        **{name: float(block["w"][0, 0]) for name, block in updates["blocks"].items()},
        "head": float(updates["head"]["bias"][0]),
    }


def test_each_layer_gets_one_more_factor_than_the_one_above():
    params = {**PARAMS, "blocks": {name: PARAMS["blocks"][name] for name in ("0", "1")}}
    found = factors(params, 0.5, "blocks.{depth}.*", first=["embed*"])
    assert found == {"embed": 0.125, "0": 0.25, "1": 0.5, "head": 1.0}


def test_numbers_are_read_as_numbers():
    found = factors(PARAMS, 0.5, "blocks.{depth}.*")
    assert found == {"embed": 1.0, "0": 0.5**11, "1": 0.5**10, "10": 0.5, "head": 1.0}


@pytest.mark.parametrize(
    "depths", [{"blocks.0.*": 0, "blocks.1*": 1}, lambda path: int(path.split(".")[1][0]) if "blocks" in path else None]
)
def test_depths_may_be_given_by_a_mapping_or_a_function(depths):
    assert factors(PARAMS, 0.5, depths) == {"embed": 1.0, "0": 0.25, "1": 0.5, "10": 0.5, "head": 1.0}


def test_behind_an_optimizer_it_scales_steps_and_decoupled_decay_alike():
    params = {"blocks": {"0": {"w": torch.ones(2, dtype=torch.float64)}}}
    plain, scaled = adamw(0.1, weight_decay=0.1), chain(adamw(0.1, weight_decay=0.1), layerwise_decay(0.75, "blocks.{depth}.*"))
    one, _ = plain.update(params, plain.init(params), params)
    two, _ = scaled.update(params, scaled.init(params), params)
    assert torch.equal(two["blocks"]["0"]["w"], 0.75 * one["blocks"]["0"]["w"])


def test_a_pattern_without_a_leaf_is_an_error():
    with pytest.raises(PatternError, match=r"'layers\.\{depth\}\.\*' matches none of 5 leaves"):
        layerwise_decay(0.5, "layers.{depth}.*").init(PARAMS)
    with pytest.raises(PatternError, match=r"first 'tokens\*' matches none"):
        layerwise_decay(0.5, "blocks.{depth}.*", first=["tokens*"]).init(PARAMS)


@pytest.mark.parametrize(("arguments", "message"), [((1.5, "b.{depth}"), r"must lie in \(0, 1\]"), ((0.5, "b.*"), r"has no \{depth\}")])
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        layerwise_decay(*arguments)
