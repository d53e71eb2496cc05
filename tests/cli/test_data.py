"""`purestep data`: real molecules of the shipped store, a few of them, as other programs would hand them over."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from purestep.data import AtomicStore, arrays_from_frames, shipped, write_store
from purestep.data.sharing import shared_structures
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

HARTREE = 27.211386245981


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def frames(*numbers):
    store = shipped("g2")
    return [{key: value for key, value in store[number].items() if key not in ("split", "group")} for number in numbers]


def write(path, *numbers):
    return write_store(path, arrays_from_frames(frames(*numbers)))


def write_npz(path, number=0):
    frame = frames(number)[0]
    arrays = {"z": frame["numbers"], "R": frame["positions"][None], "REF_energy": frame["energy"][None] / HARTREE}
    np.savez(path, **arrays)
    return frame


def test_inspect_says_what_a_store_holds():
    write("a.zarr", 0, 1, 50)
    done = purestep("data", "inspect", "a.zarr")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "a.zarr: 3 frames" in done.stdout and "energy        100.0 % of frames  eV" in done.stdout
    assert done.stdout.endswith("equal structures in two parts: none\n")


def test_inspect_prints_one_json_document_with_all_stores():
    write("a.zarr", 0, 1)
    write("b.zarr", 1, 2, 3)
    document = json.loads(purestep("data", "inspect", "a.zarr", "b.zarr", "--json").stdout)
    assert document["schema"] == "purestep.data-inspect/1"
    assert [(store["path"], store["num_frames"], store["coverage"]["forces"]) for store in document["stores"]] == [
        ("a.zarr", 2, 2),
        ("b.zarr", 3, 3),
    ]
    assert document["shared"] == [{"one": "a.zarr", "other": "b.zarr", "num_structures": 1, "example": [1, 0]}]


def test_a_structure_in_two_parts_of_one_split_is_a_leak(tmp_path):
    leaking = [{**frame, "split": np.int8(part)} for frame, part in zip(frames(0, 1, 0, 2), (0, 0, 1, 1), strict=True)]
    store = write_store(tmp_path / "leak.zarr", arrays_from_frames(leaking))
    (found,) = shared_structures({"leak.zarr": store})
    assert found == ("leak.zarr (train)", "leak.zarr (validation)", 1, (0, 2))
    assert "1 in leak.zarr (train) and leak.zarr (validation), such as frames 0 and 2" in purestep("data", "inspect", "leak.zarr").stdout


def test_inspect_draws_once():
    write("a.zarr", 0, 1, 2)
    assert purestep("data", "inspect", "a.zarr", "--png", "a.png").exit_code == 0
    header = Path("a.png").read_bytes()[:24]
    assert min(struct.unpack(">II", header[16:])) > 500
    again = purestep("data", "inspect", "a.zarr", "--png", "a.png")
    assert (again.exit_code, again.stdout) == (4, "")
    assert purestep("data", "inspect", "a.zarr", "a.zarr", "--png", "b.png").exit_code == 2


def spec_with(**changes):
    Path("spec.json").write_text(text_of(changed(**changes)))


def test_inspect_says_what_the_loss_of_a_spec_finds_in_its_stores():
    bare = [{key: value for key, value in frame.items() if key != "forces"} for frame in frames(2, 3)]
    write("a.zarr", 0, 1, 50)
    write_store("b.zarr", arrays_from_frames(bare))
    spec_with(
        **{"dataset/paths": ["a.zarr"], "dataset/split": None, "dataset/validation_split": None, "dataset/validation_paths": ["b.zarr"]}
    )
    document = json.loads(purestep("data", "inspect", "--spec", "spec.json", "--json").stdout)
    assert [Path(store["path"]).name for store in document["stores"]] == ["a.zarr", "b.zarr"]
    assert [(side["side"], side["num_frames"], side["labelled"]) for side in document["spec"]] == [
        ("training", 3, {"energy": 3, "forces": 3}),
        ("validation", 2, {"energy": 2, "forces": 0}),
    ]
    text = purestep("data", "inspect", "--spec", "spec.json").stdout
    assert "forces         0.0 % have the label   no frame has it" in text


def test_inspect_counts_the_part_that_a_spec_chooses():
    spec_with()
    training, validation = json.loads(purestep("data", "inspect", "--spec", "spec.json", "--json").stdout)["spec"]
    store = shipped("g2")
    assert (training["num_frames"], validation["num_frames"]) == (len(store.split("validation")), len(store.split("test")))
    assert training["labelled"] == {"energy": training["num_frames"], "forces": training["num_frames"]}


def test_inspect_counts_what_the_loss_of_a_spec_finds_in_another_store():
    write("a.zarr", 0, 1)
    spec_with(**{"dataset/paths": ["nowhere.zarr"]})
    (side,) = json.loads(purestep("data", "inspect", "a.zarr", "--spec", "spec.json", "--json").stdout)["spec"]
    assert (side["num_frames"], side["labelled"]) == (2, {"energy": 2, "forces": 2})
    assert purestep("data", "inspect", "--spec", "spec.json").exit_code == 4


def test_inspect_shows_frames_spread_over_a_store():
    write("a.zarr", *range(9))
    document = json.loads(purestep("data", "inspect", "a.zarr", "--sample", "3", "--json").stdout)
    shown = document["samples"]["a.zarr"]
    assert [one["frame"] for one in shown] == [0, 4, 8]
    frame = AtomicStore("a.zarr")[4]
    forces = shown[1]["arrays"]["forces"]
    assert (forces["dtype"], forces["shape"], forces["unknown"]) == (str(frame["forces"].dtype), list(frame["forces"].shape), 0)
    assert (forces["least"], forces["largest"]) == (frame["forces"].min(), frame["forces"].max())
    text = purestep("data", "inspect", "a.zarr", "--sample", "100").stdout
    assert text.count("\n  frame ") == 9 and "frames of a.zarr" in text


@pytest.mark.parametrize("words", [[], ["a.zarr", "--sample", "0"]], ids=str)
def test_inspecting_nothing_is_a_wrong_command_line(words):
    assert purestep("data", "inspect", *words).exit_code == 2


def test_inspecting_what_is_no_store_is_a_problem_of_paths(tmp_path):
    (tmp_path / "text").write_text("no store")
    for path in ("nothing.zarr", "text", "shipped:g3"):
        done = purestep("data", "inspect", path)
        assert (done.exit_code, done.stdout) == (4, "")
        assert path.removeprefix("shipped:") in done.stderr


def test_convert_renames_and_changes_units():
    frame = write_npz("one.npz")
    done = purestep("data", "convert", "one.npz", "out.zarr", "--keys", "energy=REF_energy", "--units", "energy=Hartree")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("out.zarr: 1 frames written")
    store = AtomicStore("out.zarr")
    # to Hartree and back, once rounded each way
    np.testing.assert_allclose(store[0]["energy"], frame["energy"], rtol=1e-12)
    np.testing.assert_array_equal(store[0]["positions"], frame["positions"])


def test_convert_reads_several_files_and_draws_parts():
    write("a.zarr", *range(0, 40, 2))
    write("b.zarr", *range(1, 41, 2))
    split = ("--split", "validation=0.3", "--split", "test=0.2")
    document = json.loads(purestep("data", "convert", "a.zarr", "b.zarr", "out.zarr", *split, "--json").stdout)
    assert (document["num_frames"], sum(document["parts"].values())) == (40, 40)
    assert set(document["parts"]) == {"train", "validation", "test"}
    assert document["fingerprint"] == AtomicStore("out.zarr").fingerprint


def test_convert_writes_nothing_over_anything_but_appends_when_asked():
    write_npz("one.npz")
    keys = ("--keys", "energy=REF_energy", "--units", "energy=Hartree")
    assert purestep("data", "convert", "one.npz", "out.zarr", *keys).exit_code == 0
    assert purestep("data", "convert", "one.npz", "out.zarr", *keys).exit_code == 4
    assert len(AtomicStore("out.zarr")) == 1
    assert purestep("data", "convert", "one.npz", "out.zarr", *keys, "--append").exit_code == 0
    assert len(AtomicStore("out.zarr")) == 2


def test_convert_refuses_bad_frames_unless_told_to_leave_them_out():
    frame = frames(0)[0]
    positions = np.stack([frame["positions"], np.full_like(frame["positions"], np.nan)])
    np.savez("two.npz", z=frame["numbers"], R=positions, E=np.stack([frame["energy"]] * 2))
    refused = purestep("data", "convert", "two.npz", "out.zarr")
    assert (refused.exit_code, Path("out.zarr").exists()) == (4, False)
    assert "frame 1" in refused.stderr
    assert "1 frames written, 1 left out" in purestep("data", "convert", "two.npz", "out.zarr", "--skip-bad").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["one.npz"], "at least one file to read"),
        (["one.npz", "out.zarr", "--keys", "energy"], "give name=value"),
        (["one.npz", "out.zarr", "--units", "enrgy=eV"], "there is no 'enrgy'"),
        (["one.npz", "out.zarr", "--split", "test=0.7", "--split", "validation=0.7"], "leave something"),
        (["one.npz", "out.zarr", "--split", "validation=10%"], "validation=10% is no share; give a number such as 0.1"),
        (["one.npz", "out.zarr", "--append", "--no-references"], "leave --no-references out"),
    ],
    ids=["one path", "keys", "units", "split", "share", "append"],
)
def test_convert_refuses_words_that_say_nothing(words, reason):
    done = purestep("data", "convert", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr


def test_an_unknown_unit_is_named_with_the_nearest():
    write_npz("one.npz")
    done = purestep("data", "convert", "one.npz", "out.zarr", "--units", "energy=hartree")
    assert done.exit_code == 4
    assert "did you mean 'Hartree'" in done.stderr


def test_a_split_says_what_was_asked_for_and_what_came_of_it_and_what_it_replaced():
    store = [{**frame, "group": np.int64(number % 3)} for number, frame in enumerate(frames(*range(9)))]
    divided = [{**frame, "split": np.uint8(0)} for frame in store]
    write_store("a.zarr", arrays_from_frames(divided))
    lines = purestep("data", "convert", "a.zarr", "out.zarr", "--split", "validation=0.1", "--split-by", "group").stdout.splitlines()
    got = 100 * len(AtomicStore("out.zarr").split("validation")) / 9
    assert f"validation: asked for 10 %, got {got:.3g} % of 9 frames by 3 groups" in lines
    assert "split: drawn anew; 9 frames came with a part of their own, which is replaced" in lines


def test_a_file_that_ase_would_read_says_how_to_get_it_from_anywhere(monkeypatch):
    monkeypatch.setitem(sys.modules, "ase", None)
    monkeypatch.setitem(sys.modules, "ase.db", None)
    Path("a.extxyz").write_text("")
    done = purestep("data", "convert", "a.extxyz", "out.zarr")
    assert (done.exit_code, "pip install ase" in done.stderr, "pip install -e '.[atoms]'" in done.stderr) == (4, True, True)
