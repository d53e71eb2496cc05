"""Weights in several files: names and index as Hugging Face has them, the same bits, and nothing of it below the limit."""

import hashlib
import itertools
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from purestep.checkpoint import Checkpointer, export, from_pretrained, load, load_params, load_weights, read_manifest, save, verify
from purestep.checkpoint.manifest import INDEX, commit_line
from purestep.checkpoint.splitting import assign_files
from purestep.core.state import TrainState, zero_counters
from purestep.errors import CheckpointCorruptError, CheckpointFormatError, CheckpointSaveError, CheckpointUnsafeError, NoCheckpointError

LIMIT = 64  # bytes; some tensors of the state are larger, some share a file


@pytest.fixture
def one(tmp_path, make_state):
    return Path(save(tmp_path / "one", make_state(5), max_file_bytes=LIMIT))


def read_by_index(directory):
    """What a reader does that knows safetensors and the index, and nothing of us."""
    weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
    files = {file: safetensors.torch.load_file(directory / file) for file in set(weight_map.values())}
    assert sum(map(len, files.values())) == len(weight_map)
    return {name: files[file][name] for name, file in weight_map.items()}


def edit(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "COMMIT").write_bytes(commit_line(text))


def index_record(manifest):
    return next(record for record in manifest["files"] if record["role"] == "index")


def test_a_state_in_several_files_comes_back_bit_for_bit(one, make_state, assert_same):
    state = make_state(5)
    assert_same(load(one, make_state(0)), state)
    assert_same(load(one, make_state(0), verify="full"), state)
    assert_same(load_params(one), {**state.params, "head.weight": state.params["embed.weight"]})
    assert set(load_weights(one)) == {*state.params, *state.buffers, "head.weight"}
    verify(one)


def test_weights_are_found_by_the_index_with_safetensors_alone(one, make_state, assert_same):
    state = make_state(5)
    assert_same(read_by_index(one), state.params | state.buffers)
    size = sum(leaf.numel() * leaf.element_size() for leaf in (state.params | state.buffers).values())
    assert json.loads((one / INDEX).read_text())["metadata"] == {"total_size": size}
    assert not (one / "model.safetensors").exists()


def test_files_are_within_the_limit_unless_a_single_tensor_is_not(one):
    names = [record.path for record in read_manifest(one).files if record.role != "index"]
    held = {name: list(safetensors.torch.load_file(one / name).values()) for name in names}
    sizes = {name: sum(leaf.numel() * leaf.element_size() for leaf in leaves) for name, leaves in held.items()}
    assert all(sizes[name] <= LIMIT or len(held[name]) == 1 for name in names)
    assert any(len(leaves) > 1 for leaves in held.values())
    weights = [name for name in names if name.startswith("model")]
    assert weights == [f"model-{number:05d}-of-{len(weights):05d}.safetensors" for number in range(1, len(weights) + 1)]


def test_a_state_below_the_limit_is_laid_out_in_one_file_of_each_kind(tmp_path, make_state):
    state = make_state(1)
    model = sum(leaf.numel() * leaf.element_size() for leaf in (state.params | state.buffers).values())
    path = save(tmp_path / "one", state, max_file_bytes=max(model, 400))
    assert sorted(os.listdir(path)) == ["COMMIT", "manifest.json", "model.safetensors", "state.safetensors"]
    assert INDEX in os.listdir(save(tmp_path / "two", state, max_file_bytes=model - 1))


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50)), st.integers(1, 60))
def test_every_tensor_has_one_file_in_order_and_files_are_filled(sizes, limit):
    files = assign_files("model.safetensors", sizes, limit)
    assert list(files) == list(sizes)
    assert list(files.values()) == sorted(files.values())
    totals = {file: sum(sizes[name] for name in sizes if files[name] == file) for file in files.values()}
    assert all(total <= limit or max(sizes[name] for name in sizes if files[name] == file) == total for file, total in totals.items())
    assert len(totals) <= 1 or set(totals) == {f"model-{i:05d}-of-{len(totals):05d}.safetensors" for i in range(1, len(totals) + 1)}
    assert all(one + other > limit for one, other in itertools.pairwise(totals.values()))


def test_the_writer_of_a_run_splits_too_and_keeps_the_best_and_the_last(tmp_path, make_state, assert_same):
    with Checkpointer(tmp_path, keep_last=1, keep_best="loss", max_file_bytes=LIMIT) as writer:
        for step in (1, 2, 3):
            writer.save(make_state(step), step=step, metrics={"loss": float(step)})
    assert_same(load(tmp_path, make_state(0)), make_state(3))
    assert_same(load(tmp_path, make_state(0), step="best:loss"), make_state(1))


def test_the_hash_of_the_index_is_kept_where_hashes_are(tmp_path, make_state):
    path = Path(save(tmp_path / "one", make_state(1), max_file_bytes=LIMIT, hash="sha256"))
    record = next(record for record in read_manifest(path).files if record.role == "index")
    assert record.sha256 == hashlib.sha256((path / INDEX).read_bytes()).hexdigest()
    verify(path)


# --- export and import --------------------------------------------------------------------------------------------


def test_an_export_in_several_files_is_read_by_its_index_alone(one, tmp_path, make_state, assert_same):
    export(one, tmp_path / "whole", dtype=torch.float32)
    export(one, tmp_path / "parts", dtype=torch.float32, max_file_bytes=LIMIT, config={"hidden": 3})
    expected = safetensors.torch.load_file(tmp_path / "whole" / "model.safetensors")
    assert_same(read_by_index(tmp_path / "parts"), expected)
    assert_same(load_weights(tmp_path / "parts"), expected)
    assert "model.safetensors" not in os.listdir(tmp_path / "parts")
    assert [name for name in os.listdir(tmp_path / "parts") if name.startswith(".")] == []


@pytest.mark.parametrize("source", ["checkpoint", "export"])
def test_a_new_state_begins_from_weights_in_several_files(one, tmp_path, make_state, assert_same, source):
    export(one, tmp_path / "parts", max_file_bytes=LIMIT)
    state, report = from_pretrained(one if source == "checkpoint" else tmp_path / "parts", make_state(0))
    assert_same((state.params, state.buffers), (make_state(5).params, make_state(5).buffers))
    assert report.kept == report.unused == ()


def test_files_of_an_index_that_together_exceed_the_memory_are_refused_before_they_are_read(one, tmp_path, monkeypatch):
    export(one, tmp_path / "parts", max_file_bytes=LIMIT)
    monkeypatch.setattr("purestep.checkpoint.disk.memory_bytes", lambda: 500)
    with pytest.raises(CheckpointUnsafeError, match="this machine has 500"):
        load_weights(tmp_path / "parts")


def test_an_export_whose_index_is_missing_holds_no_weights(one, tmp_path):
    export(one, tmp_path / "parts", max_file_bytes=LIMIT)
    (tmp_path / "parts" / INDEX).unlink()
    with pytest.raises(NoCheckpointError):
        load_weights(tmp_path / "parts")


# --- made up ------------------------------------------------------------------------------------------------------


def claim_another_file(manifest):
    index_record(manifest)["path"] = "other.json"


def claim_tensors_in_the_index(manifest):
    next(leaf for leaf in manifest["leaves"] if leaf["kind"] == "tensor")["pieces"][0]["file"] = INDEX


def claim_that_weights_are_an_index(manifest):
    manifest["files"][0]["role"] = "index"


def claim_another_size(manifest):
    index_record(manifest)["bytes"] += 1


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (claim_another_file, CheckpointFormatError, "cannot have the role"),
        (claim_that_weights_are_an_index, CheckpointFormatError, "cannot have the role"),
        (claim_tensors_in_the_index, CheckpointFormatError, "holds no tensors"),
        (claim_another_size, CheckpointCorruptError, "says"),
        (lambda m: index_record(m).update(sha256="0" * 64), CheckpointCorruptError, "sha256"),
    ],
)
def test_a_made_up_manifest_is_refused(one, make_state, change, kind, words):
    edit(one, change)
    with pytest.raises(kind, match=words):
        load(one, make_state(0))


@pytest.mark.parametrize(
    "read", [lambda path, like: load(path, like), lambda path, like: verify(path), lambda path, like: load_params(path)]
)
def test_an_index_that_sends_others_elsewhere_is_refused_though_we_do_not_need_it(one, make_state, read):
    text = (one / INDEX).read_text()
    changed = text.replace("model-00001", "model-00002", 1)
    assert changed != text
    (one / INDEX).write_text(changed)
    with pytest.raises(CheckpointCorruptError, match="does not say where"):
        read(one, make_state(0))


def test_an_index_that_the_manifest_does_not_list_is_a_foreign_file(tmp_path):
    path = Path(save(tmp_path / "one", {"w": torch.ones(1)}))
    (path / INDEX).write_text("{}")
    with pytest.raises(CheckpointCorruptError, match="unexpected file"):
        load(path, {"w": torch.ones(1)})


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused_before_anything_is_created(tmp_path, limit):
    state = TrainState({"w": torch.ones(1)}, {}, (), {}, zero_counters(), torch.tensor(0))
    for call in (
        lambda: save(tmp_path / "one", state, max_file_bytes=limit),
        lambda: Checkpointer(tmp_path / "root", max_file_bytes=limit),
        lambda: export(tmp_path / "one", tmp_path / "out", max_file_bytes=limit),
    ):
        with pytest.raises(ValueError, match="max_file_bytes must be at least 1"):
            call()
    assert os.listdir(tmp_path) == []


def test_an_export_that_fails_half_way_says_so_and_is_not_taken_for_weights(one, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("purestep.checkpoint.disk.rename", full)
    with pytest.raises(CheckpointSaveError, match="No space left"):
        export(one, tmp_path / "out", max_file_bytes=LIMIT)
    with pytest.raises(NoCheckpointError):
        load_weights(tmp_path / "out")
