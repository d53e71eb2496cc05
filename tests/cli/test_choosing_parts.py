"""`train init` and `finetune init`: which parts of the stores a new spec trains and validates on."""

import json
from pathlib import Path

import pytest

from purestep.cli.choosing_parts import choose_parts
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
