"""`spec diff`, `spec merge` and `spec upgrade`, as a user types them; nothing is trained."""

import json
import os
from pathlib import Path

import pytest

from purestep.spec.reading import check_text
from tests.cli.calling import purestep
from tests.spec.examples import GOOD, changed, text_of
from tests.spec.reference_examples import GUIDE_HOOKS, GUIDE_MODEL, WHOLE


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, document):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    Path(name).write_text(text_of(document))
    return name


def test_specs_that_mean_the_same_run_do_not_differ():
    written_out = changed(**{"strategy/update/2/b1": 0.9, "output/run_dir": str(Path("run").absolute())})
    done = purestep("spec", "diff", write("a.json", GOOD), write("b.json", written_out))
    assert (done.exit_code, done.stdout) == (0, "")


def test_a_difference_is_a_line():
    other = changed(**{"strategy/num_steps": 4, "strategy/hooks": []})
    done = purestep("spec", "diff", write("a.json", GOOD), write("b.json", other))
    assert done.stdout.splitlines()[0] == "~ /strategy/num_steps: 3 -> 4"
    assert done.stdout.splitlines()[1].startswith('- /strategy/hooks/0: {"kind": "ema"')
    document = json.loads(purestep("spec", "diff", "a.json", "b.json", "--json").stdout)
    assert document["differences"][0] == {"pointer": "/strategy/num_steps", "before": 3, "after": 4}


def test_a_run_stands_for_its_spec():
    write("runs/a/spec.json", changed(**{"output/run_dir": "."}))
    done = purestep("spec", "diff", "runs/a", write("runs/b/spec.json", changed(name="b", **{"output/run_dir": "../a"})))
    assert done.stdout == '~ /name: "tiny" -> "b"\n'


def test_a_bad_spec_is_not_compared():
    done = purestep("spec", "diff", write("a.json", GOOD), write("b.json", changed(typo=1)))
    assert (done.exit_code, done.stdout) == (3, "")
    assert "b.json:" in done.stderr and "PS101" in done.stderr


def test_a_model_is_merged_into_a_spec_that_lacks_one():
    base = write("train.json", changed(**{"strategy/model_specs": {}}))
    assert purestep("spec", "merge", base, write("model.json", GUIDE_MODEL), "--out", "merged.json").exit_code == 0
    spec, problems = check_text(Path("merged.json").read_text())
    assert problems == ()
    assert spec.strategy.model_specs["main"].cls_path == "your.package.ModelClass"
    assert spec.strategy.num_steps == GOOD["strategy"]["num_steps"]


def test_hooks_in_the_form_of_the_other_toolkit_are_merged_as_settings():
    done = purestep("spec", "merge", write("train.json", GOOD), write("hooks.json", GUIDE_HOOKS))
    merged = json.loads(done.stdout)
    assert (merged["dataset"]["cutoff"], merged["output"]["checkpoints"]["every_n_steps"]) == (6.0, 500)
    assert merged["strategy"]["hooks"] == GOOD["strategy"]["hooks"]


def test_paths_of_merged_files_keep_their_meaning():
    write("specs/a.json", changed(**{"dataset/paths": ["../data.zarr"]}))
    write("overlays/b.json", {"output": {"run_dir": "mine"}})
    merged = json.loads(purestep("spec", "merge", "specs/a.json", "overlays/b.json").stdout)
    assert (merged["dataset"]["paths"], merged["output"]["run_dir"]) == (["data.zarr"], "overlays/mine")


@pytest.mark.parametrize("overlay", [{"strategy": {"num_stpes": 3}}, {"strategy": {"num_epochs": 3}}, []], ids=["typo", "both", "list"])
def test_what_would_be_no_spec_is_not_written(overlay):
    assert purestep("spec", "merge", write("a.json", GOOD), write("b.json", overlay), "--out", "c.json").exit_code == 3
    assert not os.path.exists("c.json")


def test_nothing_is_merged_or_upgraded_over_a_file():
    for words in (["merge", write("a.json", GOOD), "a.json"], ["upgrade", "a.json"]):
        assert purestep("spec", *words, "--out", "a.json").exit_code == 4
    assert Path("a.json").read_text() == text_of(GOOD)


def test_an_old_spec_is_upgraded_to_one_that_means_the_same():
    write("old.json", WHOLE)
    done = purestep("spec", "upgrade", "old.json", "--out", "new.json")
    assert done.exit_code == 0
    assert "strategy.loss_fn_spec: strategy.loss" in done.stderr
    assert purestep("spec", "diff", "old.json", "new.json").stdout == ""
    assert "form of another toolkit" not in purestep("spec", "diff", "new.json", "new.json").stderr


def test_a_spec_of_another_toolkit_is_said_to_be_one():
    assert "dataset.path: dataset.paths" in purestep("spec", "diff", write("old.json", WHOLE), "old.json").stderr


@pytest.mark.parametrize(("document", "code"), [({**GOOD, "spec_version": 2}, "PS109"), ({**WHOLE, "source": {"model": "mace"}}, "PS111")])
def test_what_cannot_be_upgraded_is_refused(document, code):
    done = purestep("spec", "upgrade", write("a.json", document))
    assert (done.exit_code, done.stdout) == (3, "")
    assert code in done.stderr
