"""Labels that the loss is about: a report counts them, a run without any is refused before it begins."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from purestep.data import arrays_from_frames, shipped, write_store
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

QUIET = ["--progress", "none", "--no-report"]


@pytest.fixture(autouse=True)
def stores(tmp_path, monkeypatch):
    """`whole` has energies and forces, `half` forces of every other frame, `nan` of none, `bare` not even an array of them."""
    monkeypatch.chdir(tmp_path)
    frames = [{key: value for key, value in shipped("g2")[number].items() if key not in ("split", "group")} for number in range(4)]
    unknown = [{**frame, "forces": np.full_like(frame["forces"], np.nan)} for frame in frames]
    bare = [{key: value for key, value in frame.items() if key != "forces"} for frame in frames]
    made = {"whole": frames, "half": [frames[0], unknown[1], frames[2], unknown[3]], "nan": unknown, "bare": bare}
    for name, chosen in made.items():
        write_store(f"{name}.zarr", arrays_from_frames(chosen))


def write(training, validation="whole.zarr"):
    values = {"dataset/paths": [training], "dataset/split": None, "dataset/validation_split": None, "dataset/reference_energies": None}
    Path("spec.json").write_text(text_of(changed(**values, **{"dataset/validation_paths": [validation], "strategy/num_steps": 1})))
    return "spec.json"


def test_a_report_counts_the_frames_that_have_what_the_loss_is_about():
    path = write("half.zarr", "bare.zarr")
    report = json.loads(purestep("spec", "report", path, "--json").stdout)
    assert report["data"]["labelled"] == {"energy": 4, "forces": 2}
    assert (report["validation"]["frames"], report["validation"]["labelled"]) == (4, {"energy": 4, "forces": 0})
    found = [(warning["pointer"], warning["message"]) for warning in report["warnings"] if warning["code"] == "PS306"]
    assert found == [
        ("/strategy/loss/1", "2 of 4 frames of the training have 'forces'; only these count in the term"),
        ("/strategy/loss/1", "no frame of the validation has 'forces', so the term says nothing there"),
    ]
    assert f"{os.path.abspath('half.zarr')}  4 frames, 4 in a batch  energy 100 %  forces 50 %" in purestep("spec", "report", path).stdout


def test_a_report_of_stores_that_are_not_there_counts_nothing():
    report = json.loads(purestep("spec", "report", write("none.zarr"), "--json").stdout)
    assert "labelled" not in report["data"]
    assert {"PS304"} == {warning["code"] for warning in report["warnings"]} & {"PS304", "PS306"}


@pytest.mark.parametrize(("training", "validation"), [("bare", "whole"), ("nan", "whole"), ("whole", "bare"), ("whole", "nan")])
def test_a_run_without_a_label_that_its_loss_needs_is_refused_before_anything_is_made(training, validation):
    path = write(f"{training}.zarr", f"{validation}.zarr")
    side = "validation" if training == "whole" else "training"
    for words in ([], ["--dry-run"]):
        done = purestep("spec", "run", path, *QUIET, *words)
        assert (done.exit_code, done.stdout) == (7, "")
        assert f"error: PS306 /strategy/loss/1: no frame of the {side} has 'forces'" in done.stderr
        assert "purestep data inspect --spec spec.json" in done.stderr
    assert not os.path.exists("run")


def test_a_run_in_which_some_frames_are_labelled_is_made():
    assert purestep("spec", "run", write("half.zarr"), *QUIET).exit_code == 0


def test_a_label_that_only_a_frame_late_in_a_store_has_is_found(monkeypatch):
    monkeypatch.setattr("purestep.cli.spec.labels._PROBES", 1)
    frames = [dict(shipped("g2")[number]) for number in range(4)]
    for frame in frames[:3]:
        frame["forces"] = np.full_like(frame["forces"], np.nan)
    write_store("late.zarr", arrays_from_frames([{k: v for k, v in frame.items() if k not in ("split", "group")} for frame in frames]))
    assert purestep("spec", "run", write("late.zarr"), *QUIET).exit_code == 0
