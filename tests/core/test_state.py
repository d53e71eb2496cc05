"""The state as a tree: paths, text, static parts, and a mark on what was given away."""

import xml.etree.ElementTree as ET

import pytest
import torch
import torch.utils._pytree as torch_pytree

import purestep as ps
from purestep.core.notebook import as_html
from purestep.core.state import check_not_consumed, mark_consumed
from purestep.errors import ConsumedStateError
from tests.examples_of_models import training


def test_the_path_of_a_leaf_begins_with_its_field():
    paths = ps.tree.paths(training(hooks=(ps.hooks.ema(0.9),)).init())
    assert {
        "params.encoder.weight",
        "buffers.norm.running_mean",
        "hook_state.ema.params.encoder.weight",
        "counters.step_count",
        "seed",
    } <= set(paths)


def test_every_leaf_is_a_tensor():
    tr = training(optimizer=ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.adamw(0.1)), hooks=(ps.hooks.ema(0.9), ps.hooks.swa()))
    assert all(isinstance(leaf, torch.Tensor) for leaf in ps.tree.leaves(tr.init()))


def test_the_text_of_a_state_is_a_table_of_paths_shapes_and_bytes():
    state = training().init()
    lines = repr(state).splitlines()
    total, params = ps.tree.num_bytes(state), ps.tree.num_bytes(state.params)
    assert lines[0].startswith(f"TrainState  30 leaves, {ps.tree.format_bytes(total)}: params {params} B, buffers ")
    assert "hook_state" not in lines[0]  # there is none
    assert any("params.encoder.weight" in line and "float64[4, 4]" in line and "128 B" in line for line in lines)


def test_a_notebook_shows_a_state_as_groups_that_open_with_the_bytes_of_each():
    state = training().init()
    page = state._repr_html_()
    shown = ET.fromstring(page)  # whole: every tag is closed
    names = [group.find("summary/b").text for group in shown.iter("details")]
    assert names[0] == "TrainState"
    assert {"params", "buffers", "opt_state", "counters"} <= set(names)
    assert [group.get("open") for group in shown.iter("details")] == ["open", *[None] * (len(names) - 1)]
    assert f"6 leaves, 48 numbers, {ps.tree.format_bytes(ps.tree.num_bytes(state.params))}" in page
    assert "weight  float64[4, 4]  128 B" in page


def test_a_name_in_a_notebook_is_text_and_no_tag():
    assert "&lt;b&gt;  float32[1]" in as_html({"<b>": torch.zeros(1)}, "params")


def test_torch_and_optree_see_the_same_leaves():
    state = training().init()
    assert {id(leaf) for leaf in torch_pytree.tree_leaves(state)} == {id(leaf) for leaf in ps.tree.leaves(state)}


def test_names_of_tied_parameters_survive_both_ways_of_rebuilding():
    state = training().init()
    leaves, spec = torch_pytree.tree_flatten(state)
    assert torch_pytree.tree_unflatten(leaves, spec).aliases == state.aliases
    assert ps.tree.map(lambda leaf: leaf, state).aliases == state.aliases


def test_a_state_is_frozen():
    with pytest.raises(AttributeError):
        training().init().params = {}


def test_a_state_that_was_given_away_is_refused_with_what_to_do():
    state = training().init()
    check_not_consumed(state, "somewhere")
    mark_consumed(state)
    with pytest.raises(ConsumedStateError, match="somewhere: this state was given to a step compiled with donate=True"):
        check_not_consumed(state, "somewhere")


def test_the_device_of_a_state_is_that_asked_for_and_the_module_stays():
    state = training().init(device="cpu")
    assert {leaf.device.type for leaf in ps.tree.leaves(state)} == {"cpu"}
    meta = training().init(device="meta")
    assert {leaf.device.type for leaf in ps.tree.leaves(meta.params)} == {"meta"}
