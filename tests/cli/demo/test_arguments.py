import json
import os
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import purestep
from purestep.cli import main
from purestep.cli.demo import layout
from purestep.cli.demo.command import command
from purestep.cli.demo.recipe import FULL, SHORT, Recipe


def invoke(*words):
    return CliRunner().invoke(main, ["demo", *words])


def test_an_occupied_directory_is_refused_with_commands_that_can_be_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "precious").write_text("data")
    result = invoke("--run-dir", "my run")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "purestep demo --run-dir 'my run-002'" in result.stderr
    assert "rm -r 'my run'" in result.stderr
    assert "--resume" not in result.stderr
    assert os.listdir(tmp_path / "my run") == ["precious"]


def test_a_demo_that_was_stopped_can_be_continued_says_the_refusal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / layout.RUN).write_text("{}")
    result = invoke("--run-dir", "run")
    commands = [shlex.split(line.split(":", 1)[1]) for line in result.stderr.splitlines()[1:]]
    assert ["purestep", "demo", "--run-dir", "run", "--resume"] in commands
    ours = [words[2:] for words in commands if words[0] == "purestep"]
    assert [command.make_context("demo", words).params["run_dir"] for words in ours] == ["run", "run-002"]


def test_resuming_without_a_directory_is_a_wrong_command_line():
    assert invoke("--resume").exit_code == 2


def test_resuming_where_no_demo_was_begun_is_refused(tmp_path):
    result = invoke("--resume", "--run-dir", str(tmp_path))
    assert result.exit_code == 4
    assert "no demo was begun here" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_refused_before_anything_is_written(tmp_path):
    result = invoke("--device", "cuda", "--run-dir", str(tmp_path / "run"))
    assert result.exit_code == 6
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", [SHORT, FULL], ids=["short", "full"])
def test_the_kill_comes_after_a_checkpoint_an_epoch_and_a_validation_but_before_the_next_checkpoint(recipe):
    batches_of_an_epoch = 1610 // recipe.batch_size
    checkpoint = recipe.kill_at - recipe.kill_at % recipe.checkpoint_every
    validations = range(0, recipe.num_steps + 1, batches_of_an_epoch * recipe.validate_every_n_epochs)
    assert any(checkpoint < batch < recipe.kill_at for batch in validations)
    assert checkpoint % batches_of_an_epoch != 0


def test_a_recipe_that_is_killed_before_its_first_checkpoint_is_refused():
    with pytest.raises(ValueError, match="after a checkpoint"):
        Recipe(num_steps=10, kill_at=3, checkpoint_every=5, validate_every_n_epochs=1)


def test_a_recipe_survives_its_file():
    assert Recipe(**json.loads(json.dumps(SHORT.__dict__))) == SHORT


def test_the_help_and_the_readme_say_how_many_potentials_there_are():
    readme = (Path(purestep.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"Train {FULL.num_members} potentials" in CliRunner().invoke(main, ["demo", "--help"]).stdout
    assert f"trains {dict(enumerate(['no', 'one', 'two', 'three', 'four', 'five']))[FULL.num_members]} potentials" in readme
