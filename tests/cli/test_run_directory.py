import os

import pytest

from purestep.checkpoint import Checkpointer
from purestep.cli.exits import ExitCode, Refusal
from purestep.cli.run_directory import claim, claim_numbered, next_free


def test_an_empty_directory_can_be_claimed_and_a_missing_one_is_made(tmp_path):
    assert claim(str(tmp_path)) == str(tmp_path)
    assert os.path.isdir(claim(str(tmp_path / "deep" / "down")))


@pytest.mark.parametrize("make", [lambda path: (path / "file").touch(), lambda path: (path / ".hidden").touch()])
def test_a_directory_with_anything_in_it_is_refused(tmp_path, make):
    make(tmp_path)
    with pytest.raises(Refusal, match="not empty") as refused:
        claim(str(tmp_path))
    assert refused.value.code is ExitCode.PATH


def failed_start(path):
    (path / "checkpoints").mkdir()
    for name, text in {
        "status.json": '{"status": "failed"}',
        "spec.json": "{}",
        "metrics.jsonl": '{"kind": "start"}\n',
        "checkpoints/.lock": "",
    }.items():
        (path / name).write_text(text)


def test_a_run_that_failed_before_it_began_is_replaced(tmp_path):
    failed_start(tmp_path)
    assert os.listdir(claim(str(tmp_path))) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("status.json", '{"status": "running"}'),
        ("metrics.jsonl", '{"kind": "train"}'),
        ("checkpoints/step-0000000001", ""),
        ("notes.txt", "mine"),
    ],
)
def test_a_failed_run_that_holds_anything_else_stays(tmp_path, name, text):
    failed_start(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(Refusal, match="not empty"):
        claim(str(tmp_path))
    assert (tmp_path / name).read_text() == text


def test_a_run_whose_checkpoints_are_in_use_is_never_taken_for_a_failed_one(tmp_path):
    failed_start(tmp_path)
    with Checkpointer(tmp_path / "checkpoints", async_=False), pytest.raises(Refusal, match="not empty"):
        claim(str(tmp_path))
    assert (tmp_path / "spec.json").exists()


def test_what_other_ranks_leave_behind_belongs_to_a_failed_start(tmp_path):
    failed_start(tmp_path)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "crash-rank3.txt").touch()
    assert os.listdir(claim(str(tmp_path))) == []


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match="not a directory"):
        claim(str(tmp_path / "file"))


def test_numbered_directories_follow_each_other_and_are_never_shared(tmp_path):
    (tmp_path / "demo-002").touch()
    paths = [claim_numbered(str(tmp_path), "demo") for _ in range(2)]
    assert [os.path.basename(path) for path in paths] == ["demo-001", "demo-003"]


@pytest.mark.parametrize(
    ("taken", "asked", "expected"), [([], "run", "run-002"), (["run-002"], "run", "run-003"), (["a-009", "a-010"], "a-009", "a-011")]
)
def test_the_next_free_name_counts_on(tmp_path, monkeypatch, taken, asked, expected):
    monkeypatch.chdir(tmp_path)
    for name in taken:
        (tmp_path / name).mkdir()
    assert next_free(asked) == expected
