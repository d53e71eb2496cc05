"""The page about specs: its JSON is right, its commands run from top to bottom. Its Python runs in the tests of all documents."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from purestep.cli import main
from purestep.cli.exits import ExitCode
from purestep.spec.reading import check_text

PAGE = (Path(__file__).parents[2] / "docs/run-spec.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("json"))
def test_the_json_of_the_page_is_a_good_spec(text):
    assert check_text(text).problems == ()


def test_the_commands_of_the_page_run_from_top_to_bottom(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    lines = [line.removeprefix("$ purestep ") for block in blocks("console") for line in block.splitlines()]
    codes = [CliRunner().invoke(main, shlex.split(line)).exit_code for line in lines]
    assert codes == [0] * len(lines)
    assert len(lines) == 7


def test_the_page_has_every_exit_code():
    listed = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE) for number in row.split(",")}
    assert listed == {int(code) for code in ExitCode}
