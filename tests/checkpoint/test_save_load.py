"""Saving and loading: bit for bit, strictly by path, every difference in one error."""

import hashlib
import json
import math
import os
import pathlib
import stat

import pytest
import safetensors.torch
import torch

from purestep.checkpoint import list_checkpoints, load, load_extra, read_manifest, save, verify
from purestep.core import tree
from purestep.core.state import TrainState
from purestep.errors import CheckpointCorruptError, CheckpointSaveError, NoCheckpointError, StructureMismatchError

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def random_bits(dtype, *shape):
    count = math.prod(shape) * dtype.itemsize
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return data.view(dtype).reshape(shape)


def test_a_training_state_comes_back_bit_for_bit(tmp_path, make_state, assert_same):
    state = make_state(3, batch_count=7)
    path = save(tmp_path / "one", state)
    assert_same(load(path, make_state(0)), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit_nan_payloads_included(tmp_path, assert_same, dtype):
    state = {"matrix": random_bits(dtype, 3, 5), "scalar": random_bits(dtype), "empty": random_bits(dtype, 0, 2)}
    assert_same(load(save(tmp_path / "one", state), tree.map(torch.zeros_like, state)), state)


def test_plain_trees_keep_ints_floats_bools_texts_and_none(tmp_path, assert_same):
    state = {"a": [1, True, -0.0, float("nan"), math.inf, 0.1, 10**40], "b": ("text é\n", None, ""), "c": {"d": torch.ones(2)}}
    like = {"a": [0, False, 1.0, 1.0, 1.0, 1.0, 0], "b": ("", None, "x"), "c": {"d": torch.zeros(2)}}
    assert_same(load(save(tmp_path / "one", state), like), state)


def test_the_weights_file_opens_with_safetensors_alone_and_equals_params_and_buffers(tmp_path, make_state, assert_same):
    state = make_state(1)
    save(tmp_path / "one", state)
    assert_same(safetensors.torch.load_file(tmp_path / "one" / "model.safetensors"), {**state.params, **state.buffers})


def test_files_are_byte_for_byte_those_of_the_safetensors_library(tmp_path):
    state = {f"x.{dtype}".removeprefix("torch."): random_bits(dtype, 2, 3) for dtype in DTYPES if dtype is not torch.complex128}
    state |= {"é 漢字/|": torch.ones(()), "none": torch.empty(0)}
    save(tmp_path / "one", state)
    assert (tmp_path / "one" / "state.safetensors").read_bytes() == safetensors.torch.save(state, metadata={"format": "pt"})


def test_several_models_have_their_name_in_front(tmp_path, make_state):
    state = make_state()
    both = TrainState(
        {"student": state.params, "teacher": state.params}, {"student": {}, "teacher": state.buffers}, (), {}, state.counters, state.seed
    )
    save(tmp_path / "one", both)
    names = set(safetensors.torch.load_file(tmp_path / "one" / "model.safetensors"))
    assert {"student.layer.weight", "teacher.layer.weight", "teacher.norm.running_mean"} < names


def test_tied_names_are_in_the_alias_table_and_stored_once(tmp_path, make_state):
    save(tmp_path / "one", make_state())
    assert read_manifest(tmp_path / "one").aliases == [["head.weight", "embed.weight"]]
    assert "head.weight" not in safetensors.torch.load_file(tmp_path / "one" / "model.safetensors")


def test_strides_come_back_because_kernels_depend_on_them(tmp_path, assert_same):
    image = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    state = {"image": image, "transposed": torch.arange(6.0).reshape(2, 3).T, "part": torch.arange(10.0)[::2]}
    found = load(save(tmp_path / "one", state), state)
    assert_same(found, state)
    assert found["image"].stride() == image.stride()
    assert found["transposed"].stride() == (1, 3)


def test_a_loaded_state_shares_no_memory_with_the_target_or_the_file(tmp_path, make_state, assert_same):
    state = make_state(2)
    path = save(tmp_path / "one", state)
    found = load(path, state)
    for file in os.listdir(path):
        pathlib.Path(path, file).write_bytes(bytes(os.path.getsize(pathlib.Path(path, file))))
    tree.map(lambda leaf: leaf.zero_(), state)
    assert_same(found, make_state(2))


def test_targets_on_the_meta_device_and_gradients_are_respected(tmp_path):
    path = save(tmp_path / "one", {"w": torch.ones(2)})
    assert load(path, {"w": torch.empty(2, device="meta")})["w"].tolist() == [1.0, 1.0]
    assert load(path, {"w": torch.zeros(2, requires_grad=True)})["w"].requires_grad


def test_labels_and_counters_are_those_of_the_state(tmp_path, make_state):
    save(tmp_path / "one", make_state(batch_count=10), metrics={"loss": 0.1, "bad": math.nan})
    manifest = read_manifest(tmp_path / "one")
    assert (manifest.label, manifest.counters["batch_count"], manifest.counters["step_count"]) == (10, 10, 5)
    assert manifest.metrics == {"loss": (0.1).hex(), "bad": "nan"}


def test_a_name_with_a_number_gives_the_label(tmp_path):
    save(tmp_path / "step-0000000012", {"w": torch.ones(1)})
    assert load(tmp_path, {"w": torch.zeros(1)})["w"] == 1
    with pytest.raises(ValueError, match="bears the number 13, label= says 4"):
        save(tmp_path / "step-0000000013", {"w": torch.ones(1)}, label=4)


def test_extra_comes_back_as_it_was_given(tmp_path):
    extra = {"epoch": 3, "none": None, "nested": {"list": [1, 2.5, "x", None, True]}}
    save(tmp_path / "one", {"w": torch.ones(1)}, extra=extra)
    assert load_extra(tmp_path / "one") == extra


@pytest.mark.parametrize("bad", [{"x": math.nan}, {"x": torch.ones(1)}, {"x": {1, 2}}, {"x": [{1: 2}]}])
def test_extra_that_is_not_plain_json_is_refused_and_nothing_stays_behind(tmp_path, bad):
    with pytest.raises(CheckpointSaveError, match="extra"):
        save(tmp_path / "one", {"w": torch.ones(1)}, extra=bad)
    assert os.listdir(tmp_path) == []


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        path = save(tmp_path / "one", {"w": torch.ones(1)})
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE(os.stat(os.path.join(path, name)).st_mode) for name in os.listdir(path)}
    assert set(modes.values()) == {0o640}


# --- roots --------------------------------------------------------------------------------------------------------


def test_a_root_gives_the_newest_by_label_not_by_time_or_name(tmp_path, assert_same):
    for label in (3, 12, 7):
        save(tmp_path / f"step-{label:010d}", {"w": torch.tensor(label)}, label=label)
    save(tmp_path / "zzz", {"w": torch.tensor(99)}, label=99)
    os.symlink("step-0000000003", tmp_path / "step-0000000099")
    (tmp_path / "step-0000000100.backup").mkdir()
    like = {"w": torch.tensor(0)}
    assert load(tmp_path, like)["w"] == 12
    assert load(tmp_path, like, step=7)["w"] == 7
    assert [found.manifest.label for found in list_checkpoints(tmp_path)] == [3, 7, 12]


def test_the_best_is_found_by_a_finite_metric(tmp_path):
    for label, value in enumerate([0.5, 0.25, math.nan, 0.25, -math.inf, 0.75]):
        save(tmp_path / f"step-{label:010d}", {"w": torch.tensor(label)}, label=label, metrics={"val/loss": value})
    like = {"w": torch.tensor(0)}
    assert load(tmp_path, like, step="best:val/loss")["w"] == 3
    assert load(tmp_path, like, step="best:max:val/loss")["w"] == 5
    with pytest.raises(NoCheckpointError, match="no_such"):
        load(tmp_path, like, step="best:no_such")


def test_a_label_that_is_not_there_lists_those_that_are(tmp_path):
    save(tmp_path / "step-0000000003", {"w": torch.tensor(3)}, label=3)
    with pytest.raises(NoCheckpointError, match=r"labels \[3\]"):
        load(tmp_path, {"w": torch.tensor(0)}, step=4)


@pytest.mark.parametrize("make", ["missing", "empty"])
def test_nothing_to_load_is_said_plainly(tmp_path, make):
    root = tmp_path / "empty"
    root.mkdir()
    with pytest.raises(NoCheckpointError, match=make if make == "missing" else "no committed checkpoint"):
        load(tmp_path / make, {"w": torch.tensor(0)})


def test_a_damaged_newest_one_is_passed_over_and_said_so(tmp_path, caplog):
    for label in (1, 2):
        save(tmp_path / f"step-{label:010d}", {"w": torch.tensor(label)}, label=label)
    file = tmp_path / "step-0000000002" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    like = {"w": torch.tensor(0)}
    assert load(tmp_path, like)["w"] == 1
    assert "crc32c" in caplog.text
    assert "instead of 1 newer damaged" in caplog.text
    with pytest.raises(CheckpointCorruptError, match=r"newest intact checkpoint: .*step-0000000001"):
        load(tmp_path, like, step=2)


# --- structure ----------------------------------------------------------------------------------------------------


def test_all_differences_come_in_one_error(tmp_path):
    path = save(tmp_path / "one", {"a": torch.ones(2), "b": 1, "c": torch.ones(2, 3), "d": torch.ones(1), "e": torch.ones(7)})
    like = {"a": torch.ones(2, dtype=torch.float64), "b": True, "c": torch.ones(3, 2), "d": torch.ones(1), "f": torch.ones(1)}
    with pytest.raises(StructureMismatchError) as caught:
        load(path, like)
    text = str(caught.value)
    assert text.startswith("5 differences")
    assert "missing in checkpoint: f (float32[1])" in text
    assert "unexpected in checkpoint: e (float32[7])" in text
    assert "dtype: a checkpoint float32, target float64" in text
    assert "type: b checkpoint int, target bool" in text
    assert "shape: c checkpoint [2, 3], target [3, 2]" in text


def test_a_shallower_model_is_not_restored_into_a_deeper_one(tmp_path):
    path = save(tmp_path / "one", {f"layer{i}": torch.ones(2) for i in range(12)})
    with pytest.raises(StructureMismatchError, match="4 differences"):
        load(path, {f"layer{i}": torch.ones(2) for i in range(16)})


def test_a_long_list_of_differences_is_cut_at_fifty(tmp_path):
    path = save(tmp_path / "one", {"w": torch.ones(1)})
    with pytest.raises(StructureMismatchError, match="300 differences") as caught:
        load(path, {"w": torch.ones(1)} | {f"x{i}": i for i in range(300)})
    assert "and 250 more" in str(caught.value)


def test_a_lost_tie_is_a_difference(tmp_path, make_state):
    state = make_state()
    untied = TrainState(state.params, state.buffers, state.opt_state, state.hook_state, state.counters, state.seed)
    with pytest.raises(StructureMismatchError, match=r"target ties head.weight to embed.weight"):
        load(save(tmp_path / "one", untied), state)


def test_missing_extra_and_cast_leaves_are_allowed_only_by_name(tmp_path):
    path = save(tmp_path / "one", {"a": torch.ones(2), "old.x": torch.ones(1)})
    like = {"a": torch.zeros(2, dtype=torch.float64), "new": {"y": torch.full((1,), 5.0)}}
    found = load(path, like, allow_missing=["new.*"], allow_extra=["old.*"], cast=["a"])
    assert found["a"].dtype == torch.float64
    assert found["new"]["y"] is like["new"]["y"]
    with pytest.raises(StructureMismatchError, match="3 differences"):
        load(path, like, allow_missing=["a"], allow_extra=["new*"], cast=["old"])


def test_integers_are_never_cast_to_floats(tmp_path):
    path = save(tmp_path / "one", {"a": torch.tensor(16777217, dtype=torch.int32)})
    with pytest.raises(StructureMismatchError, match="dtype"):
        load(path, {"a": torch.tensor(0.0)}, cast=["*"])


def test_a_map_renames_and_a_mismatch_hints_at_it(tmp_path):
    path = save(tmp_path / "one", {"params.encoder.weight": torch.ones(2, 3), "other": 1})
    like = {"params.encoders.weight": torch.zeros(2, 3), "other": 0}
    with pytest.raises(StructureMismatchError, match="look renamed"):
        load(path, like)
    assert load(path, like, map={"params.encoder.": "params.encoders."})["params.encoders.weight"].sum() == 6
    assert load(path, like, map=lambda name: name.replace("encoder.", "encoders."))["other"] == 1
    with pytest.raises(StructureMismatchError, match="begins with 'decoder'"):
        load(path, like, map={"decoder": "x"})


# --- what cannot be saved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"x": object()}, "'x' is a object"),
        ({"x": torch.ones(2).to_sparse()}, "only dense tensors"),
        ({"x\n": torch.ones(2)}, "control characters"),
        ({"__metadata__": torch.ones(2)}, "reserved"),
        ({"x": torch.empty(2, device="meta")}, "meta device"),
        ({"x": "\ud800"}, "surrogates"),
        ({"": torch.ones(2)}, "is empty"),
    ],
)
def test_what_cannot_be_stored_is_named_before_anything_is_written(tmp_path, state, words):
    with pytest.raises(CheckpointSaveError, match=words):
        save(tmp_path / "one", state)
    assert os.listdir(tmp_path) == []


def test_a_parameter_and_a_buffer_of_one_name_are_refused(tmp_path, make_state):
    state = make_state()
    twice = TrainState(state.params, {"layer.bias": torch.ones(1)}, (), {}, state.counters, state.seed)
    with pytest.raises(CheckpointSaveError, match=r"'layer\.bias'"):
        save(tmp_path / "one", twice)


# --- overwriting --------------------------------------------------------------------------------------------------


def test_a_complete_checkpoint_is_replaced_and_nothing_else_is_left(tmp_path, make_state, assert_same):
    save(tmp_path / "one", make_state(1))
    save(tmp_path / "one", make_state(2))
    assert_same(load(tmp_path / "one", make_state(0)), make_state(2))
    assert os.listdir(tmp_path) == ["one"]


@pytest.mark.parametrize("make", ["foreign directory", "file", "link", "incomplete", "kept"])
def test_anything_but_a_complete_checkpoint_is_not_overwritten(tmp_path, make):
    target = tmp_path / "one"
    {
        "foreign directory": lambda: (target.mkdir(), (target / "thesis.tex").write_text("x")),
        "file": lambda: target.write_text("x"),
        "link": lambda: target.symlink_to(save(tmp_path / "other", {"w": torch.ones(1)})),
        "incomplete": lambda: (save(target, {"w": torch.ones(1)}), (target / "COMMIT").unlink()),
        "kept": lambda: (save(target, {"w": torch.ones(1)}), (target / "KEEP").touch()),
    }[make]()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(CheckpointSaveError, match="save to a new name"):
        save(target, {"w": torch.ones(1)})
    assert sorted(os.listdir(tmp_path)) == before


def test_verify_accepts_what_save_wrote(tmp_path, make_state):
    assert verify(save(tmp_path / "one", make_state(), extra={"a": 1})).extra == {"a": 1}


def test_files_have_a_hash_where_it_was_asked_for(tmp_path, make_state, assert_same):
    path = save(tmp_path / "one", make_state(3), hash="sha256")
    expected = {
        name: hashlib.sha256((tmp_path / "one" / name).read_bytes()).hexdigest() for name in ("model.safetensors", "state.safetensors")
    }
    assert {record.path: record.sha256 for record in verify(path).files} == expected
    assert_same(load(path, make_state(0), verify="full"), make_state(3))


def test_a_checkpoint_without_file_hashes_is_checked_by_tensor(tmp_path, make_state, assert_same):
    path = save(tmp_path / "one", make_state(3))
    assert {record.sha256 for record in verify(path).files} == {None}
    assert_same(load(path, make_state(0), verify="full"), make_state(3))
    file = tmp_path / "one" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(CheckpointCorruptError, match="crc32c"):
        verify(path)


def test_large_states_are_read_by_several_threads_to_the_same_bits(tmp_path, assert_same):
    state = {f"x{i}": torch.randn(1 << 20, generator=torch.Generator().manual_seed(i)) for i in range(6)}
    path = save(tmp_path / "one", state)
    assert_same(load(path, state), state)
    with open(os.path.join(path, "state.safetensors"), "r+b") as file:
        for position in (-1, -(1 << 23)):
            file.seek(position, os.SEEK_END)
            file.write(b"\x99")
    with pytest.raises(CheckpointCorruptError, match="2 of 6 tensors damaged"):
        load(path, state)


def test_the_manifest_is_canonical_json(tmp_path, make_state):
    save(tmp_path / "one", make_state())
    text = (tmp_path / "one" / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_no_pickle_anywhere_in_the_sources():
    import purestep.checkpoint

    sources = {path.name: path.read_text() for path in pathlib.Path(purestep.checkpoint.__file__).parent.glob("*.py")}
    words = ("import pickle", "pickle.", "torch.save", "eval(", "exec(", "importlib", "__import__", "marshal", "dill", "weights_only=False")
    assert [(name, word) for name, text in sources.items() for word in words if word in text] == []
