"""What a run says beside its progress is kept in its directory."""

import logging
import re
import warnings
from pathlib import Path

import pytest
import torch

from purestep.cli.spec.messages import kept_messages
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) (.*)")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def messages(run_dir="run"):
    """The entries: level and text."""
    return [ENTRY.fullmatch(line).groups() for line in Path(run_dir, "messages.log").read_text(encoding="utf-8").splitlines()]


@pytest.mark.filterwarnings("default:.*needs capture number")
def test_attempts_checkpoints_and_further_captures_are_told_of_in_order():
    compiled = {"backend": "eager", "on_recompile": "warn"}
    Path("spec.json").write_text(text_of(changed(**{"strategy/num_steps": 2, "runtime/compile": compiled})))
    assert purestep("spec", "run", "spec.json", "--progress", "none", "--no-report").exit_code == 0
    assert purestep("spec", "resume", "run", "--progress", "none", "--no-report", "--set", "strategy.num_steps=4").exit_code == 0
    found = messages()
    told = [text for _, text in found if text.startswith(("running", "checkpoint", "finished"))]
    begin = r"running: process \d+"
    expected = [begin, r"checkpoint 2 was written, for \w+", "finished: num_steps"]
    expected += [begin, r"checkpoint 4 was written, for \w+", "finished: num_steps"]
    assert [bool(re.fullmatch(pattern, text)) for pattern, text in zip(expected, told, strict=True)] == [True] * 6, told
    assert any(level == "WARNING" and "needs capture number 2" in text for level, text in found)


def test_the_end_of_a_run_that_failed_stands_there_as_it_was_told():
    explodes = {"strategy/update": [{"kind": "sgd", "learning_rate": 1e30}], "strategy/schedule": None, "strategy/num_steps": 9}
    Path("spec.json").write_text(text_of(changed(**explodes)))
    done = purestep("spec", "run", "spec.json", "--progress", "none", "--no-report")
    assert done.exit_code == 7
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert ("INFO", told) in messages()
    assert ("INFO", "failed: " + told.removeprefix("error: ")) in messages()


def test_no_file_is_made_where_nothing_is_said_and_all_is_put_back(tmp_path):
    logger = logging.getLogger("purestep")
    before = (list(logger.handlers), logger.level, warnings.showwarning)
    with kept_messages(str(tmp_path)):
        logging.getLogger("elsewhere").warning("not ours")
    assert list(tmp_path.iterdir()) == []
    assert (list(logger.handlers), logger.level, warnings.showwarning) == before
