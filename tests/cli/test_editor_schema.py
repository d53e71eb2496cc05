"""The schema beside a new spec, from which editors complete."""

import json
from pathlib import Path

import pytest

from tests.cli.calling import purestep

WORDS = ["--dataset", "a.zarr", "--output-dir", "run", "--schema"]
INITS = [["train", "init"], ["finetune", "init", "w.safetensors"]]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("w.safetensors").write_bytes(b"")
    Path("specs").mkdir()


@pytest.mark.parametrize("words", INITS, ids=lambda words: words[0])
def test_a_new_spec_names_the_schema_that_is_written_beside_it(words):
    done = purestep(*words, *WORDS, "--out", "specs/one.json")
    assert (done.exit_code, done.stdout) == (0, "")
    spec = json.loads(Path("specs/one.json").read_text())
    assert next(iter(spec.items())) == ("$schema", "./purestep.schema.json")
    assert Path("specs", spec["$schema"]).read_text() == purestep("schema", "dump").stdout
    assert purestep("spec", "check", "specs/one.json").output == ""


def test_a_schema_that_is_there_stays_and_one_of_another_version_is_said_to_be():
    purestep(*INITS[0], *WORDS, "--out", "one.json")
    assert purestep(*INITS[0], *WORDS, "--out", "two.json").stderr.splitlines()[0] == "purestep.schema.json is there already"
    Path("purestep.schema.json").write_text("mine")
    done = purestep(*INITS[0], *WORDS, "--out", "three.json")
    assert done.exit_code == 0
    assert "it is not of this version of purestep, and is left as it is" in done.stderr
    assert Path("purestep.schema.json").read_text() == "mine"


def test_a_spec_that_was_not_to_have_a_schema_has_none():
    purestep(*INITS[0], *WORDS[:-1], "--out", "one.json")
    assert "$schema" not in json.loads(Path("one.json").read_text())
    assert not Path("purestep.schema.json").exists()
