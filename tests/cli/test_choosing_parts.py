"""`train init` and `finetune init`: which parts of the stores a new spec trains and validates on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from purestep.cli.choosing_parts import choose_parts
from purestep.data import layout, shipped
from purestep.spec import own_parts
from tests.cli.calling import purestep

INIT = ["train", "init", "--dataset", "shipped:g2", "--output-dir", "run", "--out", "spec.json", "--model", "purestep.models.PaiNN"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dataset():
    return json.loads(Path("spec.json").read_text())["dataset"]


def test_a_spec_never_trains_on_the_test_frames_of_a_store_that_has_parts():
    done = purestep(*INIT)
    assert (dataset()["split"], dataset()["validation_split"]) == ("train", "validation")
    assert "trains on train, validates on validation" in done.stderr
    assert purestep("spec", "report", "spec.json", "--strict").exit_code == 0


def test_a_spec_that_starts_from_weights_takes_the_parts_too():
    Path("w.safetensors").write_bytes(b"")
    purestep("finetune", "init", "w.safetensors", *INIT[2:])
    assert (dataset()["split"], dataset()["validation_split"]) == ("train", "validation")


def test_a_store_that_is_not_there_yet_has_no_parts():
    purestep("train", "init", "--dataset", "none.zarr", *INIT[4:])
    assert {"split", "validation_split"}.isdisjoint(dataset())


def test_a_store_in_a_directory_has_the_parts_that_the_data_layer_finds():
    store = shipped("g2")
    assert own_parts.SPLITS == layout.SPLITS
    assert own_parts.parts_of(str(store.path)) == tuple(name for name in layout.SPLITS if len(store.split(name)))


@pytest.mark.parametrize("path", ["none.zarr", str(shipped("g2").path)])
def test_a_spec_is_written_without_torch(path):
    words = ["train", "init", "--dataset", path, *INIT[4:]]
    code = f"import sys; from purestep.cli import main; main({words!r}, standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()
    assert ("split" in dataset()) == (path != "none.zarr")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ((["shipped:g2"], [], "all", None), (None, None)),
        ((["shipped:g2"], [], "validation", None), ("validation", None)),
        ((["shipped:g2"], [], "validation", "test"), ("validation", "test")),
        ((["shipped:g2"], [], None, "none"), ("train", None)),
        ((["shipped:g2"], ["other.zarr"], None, None), ("train", None)),
        ((["shipped:g2", "none.zarr"], [], None, None), (None, None)),
    ],
)
def test_what_is_asked_for_comes_first_and_nothing_is_validated_on_that_is_trained_on(asked, chosen):
    assert choose_parts(*asked) == chosen
