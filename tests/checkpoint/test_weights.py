"""Weights without the rest: reading, exporting, starting from them, importing those of others."""

import json
import os

import pytest
import safetensors.torch
import torch
from torch import nn

import purestep as ps
from purestep.checkpoint import export, from_pretrained, load_params, load_weights, save
from purestep.core import tree
from purestep.core.state import TrainState, zero_counters
from purestep.errors import (
    CheckpointCorruptError,
    CheckpointFormatError,
    CheckpointSaveError,
    CheckpointUnsafeError,
    NoCheckpointError,
    PatternError,
    StructureMismatchError,
)


class Tied(nn.Module):
    """An embedding whose weight is also that of the head, and a norm with buffers."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(5, 3)
            self.norm = nn.BatchNorm1d(3)
            self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def training(seed=0, dtype=torch.float32):
    optimizer = ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(0.1))
    return ps.Training(Tied(seed).to(dtype), loss=lambda predictions, batch: predictions, optimizer=optimizer, hooks=[ps.hooks.ema(0.9)])


@pytest.fixture
def trained(tmp_path, make_state):
    return save(tmp_path / "trained", make_state(5))


def test_params_are_read_alone_and_tied_names_give_the_same_tensor(trained, make_state, assert_same):
    params = load_params(trained)
    state = make_state(5)
    assert_same(params, {**state.params, "head.weight": state.params["embed.weight"]})
    assert params["head.weight"] is params["embed.weight"]
    assert set(load_weights(trained)) == {*params, *state.buffers}


def test_reading_params_checks_them_and_looks_at_nothing_else(trained, make_state):
    path = os.path.join(trained, "state.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x99")
    load_params(trained)
    path = os.path.join(trained, "model.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x99")
    with pytest.raises(CheckpointCorruptError):
        load_params(trained)


def test_a_plain_tree_has_no_weights(tmp_path):
    with pytest.raises(CheckpointFormatError, match="not saved from a training state"):
        load_params(save(tmp_path / "one", {"w": torch.ones(1)}))


# --- export -------------------------------------------------------------------------------------------------------


def test_exported_weights_load_strictly_into_the_module(tmp_path, assert_same):
    state = training(3).init()
    save(tmp_path / "one", state)
    export(tmp_path / "one", tmp_path / "out", config={"hidden": 3})
    module = Tied(seed=8)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors"))
    assert_same(dict(module.state_dict()), dict(Tied(seed=3).state_dict()))
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"hidden": 3}
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]


def test_tied_names_can_be_exported_once(trained, tmp_path):
    export(trained, tmp_path / "out", tied="once")
    assert "head.weight" not in safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")


def test_averages_are_exported_in_the_dtype_of_the_model_or_cast(tmp_path, make_state):
    state = make_state(1)
    ema = tree.map(lambda leaf: leaf.float() + 1, state.params)
    state = TrainState(state.params, state.buffers, (), {"ema": {"params": ema}}, state.counters, state.seed, state.aliases)
    save(tmp_path / "one", state)
    export(tmp_path / "one", tmp_path / "ema", weights="ema")
    found = safetensors.torch.load_file(tmp_path / "ema" / "model.safetensors")
    assert found["layer.bias"].dtype == torch.bfloat16
    assert torch.equal(found["layer.weight"], ema["layer.weight"].double())
    assert torch.equal(found["norm.running_mean"], state.buffers["norm.running_mean"])
    export(tmp_path / "one", tmp_path / "half", weights="ema", dtype=torch.float16)
    found = safetensors.torch.load_file(tmp_path / "half" / "model.safetensors")
    assert (found["layer.weight"].dtype, found["norm.num_batches_tracked"].dtype) == (torch.float16, torch.int64)
    with pytest.raises(CheckpointFormatError, match=r"called 'swa' \(it has ema\)"):
        export(tmp_path / "one", tmp_path / "swa", weights="swa")


def test_an_export_does_not_touch_a_directory_with_something_in_it(trained, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").touch()
    with pytest.raises(CheckpointSaveError, match="not an empty directory"):
        export(trained, tmp_path / "out")


# --- a new state --------------------------------------------------------------------------------------------------


def test_a_new_state_with_old_weights_is_the_one_that_training_from_them_begins_with(tmp_path, assert_same):
    save(tmp_path / "one", training(3).init(seed=1))
    state, report = from_pretrained(tmp_path / "one", training(0).init(seed=9))
    assert_same(state, training(3).init(seed=9))
    assert report.loaded == tuple(sorted({**training().init().params, **training().init().buffers}))
    assert report.kept == report.unused == report.converted == ()


def test_float32_masters_of_half_precision_weights_follow(tmp_path, assert_same):
    def state_of(seed):
        params = {"w": torch.randn(4, generator=torch.Generator().manual_seed(seed)).bfloat16(), "b": torch.zeros(2)}
        opt_state = {"master": tree.map(lambda leaf: leaf.float(), params), "mu": tree.map(torch.zeros_like, params)}
        return TrainState(params, {}, opt_state, {}, zero_counters(), torch.tensor(0))

    path = save(tmp_path / "one", state_of(3))
    assert_same(from_pretrained(path, state_of(0)).state, state_of(3))


def test_the_state_given_is_left_as_it_was(tmp_path, assert_same):
    save(tmp_path / "one", training(3).init())
    like = training(0).init()
    from_pretrained(tmp_path / "one", like)
    assert_same(like, training(0).init())


def test_differences_are_reported_all_at_once_unless_patterns_say_what_to_load(tmp_path, make_state):
    state = make_state(1)
    other = {"layer.weight": torch.ones(4, 3), "layer.bias": torch.ones(5), "old.weight": torch.ones(1), "embed.weight": torch.ones(5, 3)}
    safetensors.torch.save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(StructureMismatchError) as caught:
        from_pretrained(tmp_path / "other.safetensors", state)
    text = str(caught.value)
    assert text.startswith("4 differences")
    assert "shape: layer.bias source [5], state [4]" in text
    assert "missing in the source: norm.running_mean" in text
    assert "unexpected in the source: old.weight" in text
    loaded, report = from_pretrained(tmp_path / "other.safetensors", state, patterns=["layer.weight", "embed.*"])
    assert report == (
        ("embed.weight", "layer.weight"),
        ("layer.bias", "norm.num_batches_tracked", "norm.running_mean"),
        ("layer.bias", "old.weight"),
        ("layer.weight",),
    )
    assert loaded.params["layer.weight"].dtype == torch.float64
    assert loaded.params["layer.bias"] is state.params["layer.bias"]


def test_zero_matches_is_an_error(tmp_path, trained, make_state):
    with pytest.raises(PatternError, match="matches none"):
        from_pretrained(trained, make_state(0), patterns="encoder.*")
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(StructureMismatchError, match=r"missing in the source: layer\.weight"):
        from_pretrained(tmp_path / "other.safetensors", make_state(0), patterns="layer.*")


def test_names_are_mapped_by_prefix_or_function(tmp_path, make_state):
    state = make_state(1)
    source = {f"backbone.{name}": leaf + 1 for name, leaf in state.params.items()}
    torch.save({"model": source, "epoch": 3}, tmp_path / "other.pt")
    options = {"patterns": ["layer.*", "embed.*"], "key": "model"}
    by_prefix = from_pretrained(tmp_path / "other.pt", state, map={"backbone.": ""}, **options).state
    by_function = from_pretrained(tmp_path / "other.pt", state, map=lambda name: name.removeprefix("backbone."), **options).state
    assert torch.equal(by_prefix.params["layer.weight"], state.params["layer.weight"] + 1)
    assert torch.equal(by_function.params["layer.weight"], by_prefix.params["layer.weight"])
    with pytest.raises(StructureMismatchError, match=r"map= can rename"):
        from_pretrained(tmp_path / "other.pt", state, **options)


def test_a_source_that_unties_what_the_state_ties_is_refused(tmp_path, make_state):
    state = make_state(1)
    weights = {**state.params, **state.buffers, "head.weight": state.params["embed.weight"].clone()}
    safetensors.torch.save_file(weights, tmp_path / "same.safetensors")
    from_pretrained(tmp_path / "same.safetensors", state)
    safetensors.torch.save_file(weights | {"head.weight": torch.zeros(5, 3)}, tmp_path / "other.safetensors")
    with pytest.raises(StructureMismatchError, match=r"ties head\.weight to embed\.weight"):
        from_pretrained(tmp_path / "other.safetensors", state)


# --- files of others ----------------------------------------------------------------------------------------------


class Malicious:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_torch_file_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Malicious()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointFormatError, match="weights_only"):
        load_weights(tmp_path / "evil.pt")
    assert not (tmp_path / "executed").exists()


def test_a_state_dict_may_be_inside_a_torch_file(tmp_path):
    torch.save({"model": {"w": torch.ones(1)}, "epoch": 3}, tmp_path / "one.pt")
    assert load_weights(tmp_path / "one.pt", key="model")["w"] == 1
    with pytest.raises(CheckpointFormatError, match=r"in one of \['model'\]"):
        load_weights(tmp_path / "one.pt")
    with pytest.raises(CheckpointFormatError, match="no 'ema'"):
        load_weights(tmp_path / "one.pt", key="ema")


def test_a_directory_of_shards_is_read_by_its_index(tmp_path):
    for number, name in enumerate(["a", "b"], start=1):
        safetensors.torch.save_file({name: torch.tensor(float(number))}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert {name: float(leaf) for name, leaf in load_weights(tmp_path).items()} == {"a": 1.0, "b": 2.0}
    index["weight_map"]["c"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointFormatError, match="'c' is not in"):
        load_weights(tmp_path)
    index["weight_map"]["c"] = "../secret.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointUnsafeError, match="illegal file name"):
        load_weights(tmp_path)


def test_nothing_that_holds_weights_is_said_plainly(tmp_path):
    with pytest.raises(NoCheckpointError, match="neither a checkpoint"):
        load_weights(tmp_path)


def test_names_do_not_tell_that_a_module_was_compiled(tmp_path):
    module = nn.Sequential(nn.Linear(2, 2))
    torch.save(torch.compile(module).state_dict(), tmp_path / "compiled.pt")
    assert set(load_weights(tmp_path / "compiled.pt")) == {"0.weight", "0.bias"}
