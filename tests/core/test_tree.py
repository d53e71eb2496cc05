"""Trees: paths, patterns, tensors, nodes, text."""

from typing import NamedTuple

import optree
import pytest
import torch
import torch.utils._pytree as torch_pytree

from purestep.core import tree
from purestep.errors import PatternError, TreeError


class Pair(NamedTuple):
    left: object
    right: object


@tree.node(static=("kind",))
class Box:
    inside: object
    kind: str = "plain"


def example():
    return {"b": [torch.ones(2), (torch.zeros(1),)], "a": Pair(torch.ones(3), Box({"x": torch.ones(4)}))}


def test_paths_are_keys_fields_and_positions_joined_with_dots_in_sorted_order():
    assert tree.paths(example()) == ["a.left", "a.right.inside.x", "b.0", "b.1.0"]


def test_the_path_of_a_bare_leaf_is_empty():
    assert tree.paths(torch.ones(1)) == [""]


def test_none_is_no_leaf():
    assert tree.leaves({"a": None, "b": 1}) == [1]


def test_two_leaves_of_one_path_are_refused():
    with pytest.raises(TreeError, match=r"two leaves share the path 'a\.b'"):
        tree.paths({"a.b": 1, "a": {"b": 2}})


def test_unflatten_undoes_flatten_for_every_kind_of_node():
    leaves, structure = tree.flatten(example())
    again = tree.unflatten(structure, leaves)
    assert tree.structure(again) == structure
    assert all(one is other for one, other in zip(tree.leaves(again), leaves, strict=True))
    assert type(again["a"].right) is Box


def test_map_with_path_gives_each_leaf_its_path_and_companions():
    assert tree.map_with_path(lambda path, a, b: f"{path}={a + b}", {"x": 1, "y": {"z": 2}}, {"x": 10, "y": {"z": 20}}) == {
        "x": "x=11",
        "y": {"z": "y.z=22"},
    }


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], [0, 0, 0]),
        (["encoder.*"], [0, 0, None]),
        (["*.bias", "*"], [1, 0, 1]),
        (["encoder.?.weight"], [0, None, None]),
        (["head"], [None, None, 0]),
    ],
)
def test_the_first_pattern_that_matches_counts(patterns, expected):
    assert tree.first_matches(patterns, ["encoder.0.weight", "encoder.0.bias", "head"]) == expected


def test_brackets_in_a_pattern_stand_for_themselves():
    assert tree.first_matches(["layers[0].*"], ["layers[0].weight", "layers0.weight"]) == [0, None]


def test_a_pattern_that_matches_nothing_names_near_misses():
    with pytest.raises(PatternError, match=r"freeze pattern 'encodr\.weight' matches none of 2 leaves; did you mean 'encoder\.weight'"):
        tree.first_matches(["encodr.weight"], ["encoder.weight", "head.bias"], "freeze pattern")


def test_patterns_on_an_empty_tree_match_nothing_and_are_no_error():
    assert tree.first_matches(["*"], []) == []


def test_where_keeps_leaves_that_are_one_object():
    old, new = {"a": torch.zeros(1), "b": torch.zeros(1)}, {"a": torch.ones(1)}
    chosen = tree.where(torch.tensor(True), {**old, **new}, old)
    assert chosen["b"] is old["b"]
    assert chosen["a"].item() == 1.0


def test_global_norm_sums_squares_wide():
    assert tree.global_norm({"a": torch.full((3,), 1e20)}).item() == pytest.approx(3**0.5 * 1e20, rel=1e-6)
    assert tree.global_norm([torch.full((4,), 300.0, dtype=torch.float16)]).item() == 600.0
    assert tree.global_norm([torch.tensor([3.0 + 4.0j]), torch.tensor([12.0])]).item() == pytest.approx(13.0, rel=1e-12)
    assert tree.global_norm({}).item() == 0.0


def test_cast_leaves_whole_numbers_alone():
    cast = tree.cast({"a": torch.ones(1), "n": torch.ones(1, dtype=torch.int64)}, torch.bfloat16)
    assert (cast["a"].dtype, cast["n"].dtype) == (torch.bfloat16, torch.int64)


def test_clone_keeps_strides_and_shares_nothing():
    source = {"a": torch.arange(6).view(2, 3).T}
    copy = tree.clone(source)
    assert copy["a"].stride() == source["a"].stride()
    assert copy["a"].data_ptr() != source["a"].data_ptr()


def test_num_bytes_counts_all_tensors():
    assert tree.num_bytes({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float64), "c": "text"}) == 28


def test_a_node_crosses_both_libraries_and_keeps_its_static_part():
    box = Box({"x": torch.ones(1)}, "striped")
    for flatten, unflatten in (
        (lambda x: tree.flatten(x), lambda leaves, spec: tree.unflatten(spec, leaves)),
        (torch_pytree.tree_flatten, torch_pytree.tree_unflatten),
    ):
        leaves, spec = flatten(box)
        again = unflatten(leaves, spec)
        assert (again.kind, again.inside["x"] is leaves[0]) == ("striped", True)
    assert tree.structure(Box(1, "a")) != tree.structure(Box(1, "b"))


def test_a_node_is_registered_in_the_namespace_of_purestep_only():
    assert optree.tree_leaves(Box(1)) != [1]


def test_a_node_is_frozen_and_compared_by_identity():
    box = Box(torch.ones(2))
    with pytest.raises(AttributeError):
        box.inside = 1
    assert box != Box(box.inside)


def test_text_of_a_tree_lists_paths_types_shapes_and_bytes():
    text = tree.describe({"layer": {"weight": torch.ones(2, 3)}, "count": torch.tensor(1)}, "State")
    assert text.splitlines()[0] == "State  2 leaves, 32 B"
    assert "layer.weight  float32[2, 3]" in text
    assert "int64[]" in text
