"""`spec run` after a start that failed."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from purestep.cli import main
from tests.spec.examples import changed, text_of


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)


def run(**changes):
    Path("spec.json").write_text(text_of(changed(**{"strategy/num_steps": 1, **changes})))
    return CliRunner().invoke(main, ["spec", "run", "spec.json", "--progress", "none", "--no-report"])


def test_the_corrected_spec_of_a_start_that_failed_runs_in_the_same_directory():
    assert run(**{"strategy/frozen": ["*"]}).exit_code == 3  # which only the model can tell
    assert os.listdir("run")
    Path("run/git.patch").write_text("of a start with changes")
    done = run()
    assert done.exit_code == 0, done.output
    assert "it is replaced" in done.stderr


def test_resuming_is_proposed_only_where_there_is_a_checkpoint():
    os.mkdir("run")
    Path("run/mine.txt").write_text("mine")
    refused = run()
    assert (refused.exit_code, "resume" in refused.stderr, "run-002" in refused.stderr) == (4, False, True)
