"""Overlays and differences of documents: the laws, and the cases where a shallow merge goes wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from purestep.spec.differences import differences
from purestep.spec.merging import merge
from purestep.spec.paths import moved
from tests.spec.examples import GOOD, changed

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-3, 3) | some.sampled_from(["a", "b"]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(["kind", "a", "b/c", "d"]), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = some.dictionaries(some.sampled_from(["a", "b/c", "d"]), VALUES, max_size=3)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_a_document_over_itself_is_itself_and_does_not_differ(document):
    assert merge(document, document) == document
    assert list(differences(document, document)) == []


@settings(max_examples=60, deadline=None)
@given(OBJECTS, OBJECTS)
def test_what_an_overlay_says_holds_and_what_it_does_not_say_stays(document, overlay):
    merged = merge(document, overlay)
    assert merge(merged, overlay) == merged
    assert {key: merged[key] for key in document.keys() - overlay.keys()} == {
        key: document[key] for key in document.keys() - overlay.keys()
    }
    assert merge(document, {}) == document


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_documents_are_equal_exactly_if_nothing_differs(first, second):
    # as texts: true is no number in JSON, though Python takes it for 1
    equal = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (list(differences(first, second)) == []) == equal


def test_merging_changes_neither_document():
    overlay = {"strategy": {"hooks": [{"kind": "swa"}]}}
    merged = merge(GOOD, overlay)
    merged["strategy"]["hooks"][0]["kind"] = "x"
    assert overlay == {"strategy": {"hooks": [{"kind": "swa"}]}}
    assert changed() == GOOD


@pytest.mark.parametrize(
    ("document", "overlay", "merged"),
    [
        (
            {"strategy": {"num_steps": 5, "model_specs": {}}},
            {"strategy": {"model_specs": {"main": 1}}},
            {"num_steps": 5, "model_specs": {"main": 1}},
        ),
        ({"strategy": {"schedule": {"kind": "a", "x": 1}}}, {"strategy": {"schedule": {"kind": "b"}}}, {"schedule": {"kind": "b"}}),
        ({"strategy": {"schedule": {"kind": "a", "x": 1}}}, {"strategy": {"schedule": {"x": 2}}}, {"schedule": {"kind": "a", "x": 2}}),
        ({"strategy": {"schedule": {"kind": "a"}}}, {"strategy": {"schedule": None}}, {"schedule": None}),
        ({"strategy": {"hooks": [1, 2]}}, {"strategy": {"hooks": [3]}}, {"hooks": [3]}),
    ],
    ids=["deep", "other kind", "same kind", "null", "list"],
)
def test_objects_are_merged_and_everything_else_is_replaced(document, overlay, merged):
    assert merge(document, overlay) == {"strategy": merged}


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, ["~ /a: 1 -> true"]),
        ({"a": None}, {}, ["- /a: null"]),
        ({}, {"a/b": [1]}, ["+ /a~1b: [1]"]),
        ({"a": [{"kind": "x", "b": 1}]}, {"a": [{"kind": "x", "b": 2}]}, ["~ /a/0/b: 1 -> 2"]),
        ({"a": [{"kind": "x", "b": 1}]}, {"a": [{"kind": "y"}]}, ['~ /a/0: {"kind": "x", "b": 1} -> {"kind": "y"}']),
        ({"a": [1, 2, 3]}, {"a": [0, 1, 2, 3]}, ["+ /a/0: 0"]),
        ([], {}, ["~ /: [] -> {}"]),
    ],
)
def test_a_difference_is_one_line_with_its_pointer(first, second, lines):
    assert [found.text() for found in differences(first, second)] == lines


def test_paths_mean_the_same_wherever_a_document_is_written():
    document = {"dataset": {"paths": ["a.zarr", "/b", "shipped:g2"]}, "source": {"checkpoint_path": "w"}, "output": {"run_dir": "../run"}}
    assert moved(document, "here", "here/deeper") == {
        "dataset": {"paths": ["../a.zarr", "/b", "shipped:g2"]},
        "source": {"checkpoint_path": "../w"},
        "output": {"run_dir": "../../run"},
    }
