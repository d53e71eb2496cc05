"""Which leaves a transform sees: masks, labels, freezing."""

import pytest
import torch

import purestep as ps
from purestep.core.selection import resolve_labels, resolve_mask
from purestep.errors import PatternError, TransformError
from purestep.testing import assert_trees_equal

PARAMS = {"encoder": {"bias": torch.ones(2), "weight": torch.ones(2, 2)}, "head": torch.ones(3)}
ONES = ps.tree.map(torch.ones_like, PARAMS)


@pytest.mark.parametrize(
    "mask",
    [
        "encoder.*",
        ["encoder.bias", "*.weight"],
        {"encoder": True, "head": False},
        {"encoder": {"bias": True, "weight": True}, "head": False},
        lambda params: {"encoder": True, "head": False},
        lambda params: "encoder.*",
    ],
)
def test_a_mask_is_a_pattern_a_prefix_or_a_function(mask):
    assert resolve_mask(mask, PARAMS) == (True, True, False)


def test_a_mask_of_another_structure_is_refused_with_the_paths_there_are():
    with pytest.raises(PatternError, match=r"mask: not a prefix of the parameters.*encoder\.bias"):
        resolve_mask({"encodr": True, "head": False}, PARAMS)


@pytest.mark.parametrize(
    "labels",
    [
        {"encoder.*": "slow", "*": "fast"},
        [("encoder.*", "slow"), ("*", "fast")],
        {"encoder": "slow", "head": "fast"},
        lambda params: {"encoder": {"bias": "slow", "weight": "slow"}, "head": "fast"},
    ],
)
def test_labels_are_patterns_a_prefix_or_a_function(labels):
    assert resolve_labels(labels, PARAMS) == ("slow", "slow", "fast")


def test_a_leaf_without_a_label_is_an_error_that_names_it():
    with pytest.raises(PatternError, match=r"1 of 3 leaves have no label, among them 'head'"):
        resolve_labels({"encoder.*": "slow"}, PARAMS)


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(PatternError, match=r"'encodr\.\*' matches none"):
        ps.masked(ps.scale(2.0), "encodr.*").init(PARAMS)


def test_a_masked_transform_sees_its_own_leaves_only():
    transform = ps.masked(ps.trace(0.9), "encoder.*")
    state = transform.init(PARAMS)
    assert [path for path in ps.tree.paths(state) if "head" in path] == []
    updates, _ = transform.update(ONES, state, PARAMS)
    assert updates["head"] is ONES["head"]


def test_a_masked_clip_takes_the_norm_of_its_own_leaves():
    updates = {**ONES, "head": torch.full((3,), 1e6)}
    transform = ps.masked(ps.clip_by_global_norm(6**0.5), "encoder.*")
    clipped, _ = transform.update(updates, transform.init(PARAMS), PARAMS)
    assert torch.equal(clipped["encoder"]["bias"], ONES["encoder"]["bias"])


def test_partition_gives_each_leaf_to_the_transform_of_its_label():
    transform = ps.partition({"up": ps.scale(2.0), "down": ps.scale(0.5)}, {"head": "up", "*": "down"})
    updates, _ = transform.update(ONES, transform.init(PARAMS), PARAMS)
    assert (updates["head"][0].item(), updates["encoder"]["bias"][0].item()) == (2.0, 0.5)


def test_partition_is_the_parts_run_by_themselves():
    labels = {"head": "adam", "*": "momentum"}
    transform = ps.partition({"adam": ps.scale_by_adam(), "momentum": ps.trace(0.9)}, labels)
    updates, _ = transform.update(ONES, transform.init(PARAMS), PARAMS)
    alone = ps.scale_by_adam()
    expected, _ = alone.update({"head": ONES["head"]}, alone.init({"head": PARAMS["head"]}), {"head": PARAMS["head"]})
    assert_trees_equal(updates["head"], expected["head"])


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"a": ps.scale(1.0)}, "leaf 'encoder.bias' has label 'b'"),
        ({"a": ps.scale(1.0), "b": ps.scale(1.0), "c": ps.scale(1.0)}, "no leaf has label 'c'"),
    ],
)
def test_labels_and_transforms_must_cover_each_other(transforms, message):
    with pytest.raises(PatternError, match=message):
        ps.partition(transforms, {"head": "a", "*": "b"}).init(PARAMS)


def test_freeze_is_true_where_nothing_moves():
    transform = ps.chain(ps.add_decayed_weights(0.1), ps.freeze("encoder.*"))
    updates, _ = transform.update(ONES, transform.init(PARAMS), PARAMS)
    after = ps.apply_updates(PARAMS, updates)
    assert_trees_equal(after["encoder"], PARAMS["encoder"])
    assert torch.all(after["head"] != PARAMS["head"])


def test_freezing_keeps_even_a_negative_zero():
    params = {"a": torch.tensor([-0.0]), "b": torch.ones(1)}
    transform = ps.freeze("a")
    updates, _ = transform.update(ps.tree.map(torch.ones_like, params), transform.init(params), params)
    assert_trees_equal(ps.apply_updates(params, updates)["a"], params["a"])


def test_a_gate_inside_a_part_holds_all_parts_back():
    transform = ps.partition({"gate": ps.chain(ps.skip_nonfinite()), "plain": ps.trace(0.9)}, {"head": "gate", "*": "plain"})
    state = transform.init(PARAMS)
    bad = {**ONES, "head": torch.full((3,), float("nan"))}
    result, after = transform.update(bad, state, PARAMS)
    assert not result.apply
    assert result.reject
    assert_trees_equal(ps.apply_updates(PARAMS, result), PARAMS)
    assert_trees_equal(after.inner["plain"], state.inner["plain"])


def test_two_gates_in_two_parts_are_refused():
    gates = {"a": ps.skip_nonfinite(), "b": ps.skip_nonfinite()}
    transform = ps.partition(gates, {"head": "a", "*": "b"})
    with pytest.raises(TransformError, match=r"each hold a gate"):
        transform.update(ONES, transform.init(PARAMS), PARAMS)
