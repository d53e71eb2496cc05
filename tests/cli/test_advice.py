"""Every command that the package or its pages tell somebody to type exists, and takes the options that stand with it."""

import ast
import re
from pathlib import Path

import click
import pytest

import purestep
from purestep.cli import main
from purestep.cli.program import SETTINGS, Program

ROOT = Path(purestep.__file__).parent
PAGES = [*(ROOT.parent / "docs").glob("*.md"), *(ROOT.parent / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
PAGES += [path for path in (ROOT.parent / "examples").iterdir() if path.is_file()]
# quoted, set apart, or after a prompt; up to its end, or to the remark that follows two spaces
ADVICE = re.compile(r"(?:(?<=`)|(?<=  )|(?<=\$ )|(?<=-m )|(?<=srun )|(?<=: ))purestep ([a-z]+(?: (?! )[^\s`'\"|,;:()]+)*)")
PLACEHOLDER = "7"  # a name, a path and a number, for what is known only when the advice is given


def text_of(node):
    """A string as it is printed, but for what it has no words for yet."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER for part in parts)


def strings_of(path):
    parsed = ast.parse(path.read_text(encoding="utf-8"))
    whole = [node for node in ast.walk(parsed) if isinstance(node, ast.JoinedStr)]
    pieces = {id(part) for node in whole for part in node.values}
    plain = [node for node in ast.walk(parsed) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces]
    return [text_of(node) for node in [*whole, *plain]]


def commands_of(path):
    """The words of every call of `command_line("purestep", ...)`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command_line":
            words = [text_of(word) for word in node.args if not isinstance(word, ast.Starred)]
            if words[0] == "purestep":
                yield words[1:]


def command_named(words):
    """The command that words begin with, and the words after it; None where they name no command."""
    place, rest = main, list(words)
    while isinstance(place, Program) and rest and place.get_command(None, rest[0]) is not None:
        place = place.get_command(None, rest.pop(0))
    return place, rest


def unknown_in(words):
    """What of a command line does not exist."""
    command, rest = command_named(words)
    if command is main:
        return words[0]
    if isinstance(command, Program) and rest and re.fullmatch("[a-z]+", rest[0]):
        return " ".join(words)
    known = {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}
    return next((word for word in (one.partition("=")[0] for one in rest) if word.startswith("--") and word not in known), None)


TOLD = sorted(
    {
        found
        for text in [*(text for path in ROOT.rglob("*.py") for text in strings_of(path)), *(path.read_text() for path in PAGES)]
        for found in ADVICE.findall(text)
    }
)
GIVEN = sorted({tuple(words) for path in ROOT.rglob("*.py") for words in commands_of(path)})


@pytest.mark.parametrize("line", TOLD)
def test_what_is_told_exists_with_its_options(line):
    assert unknown_in(line.split()) is None


@pytest.mark.parametrize("words", GIVEN, ids=" ".join)
def test_a_line_that_is_ready_to_be_copied_is_a_whole_command(words):
    command, rest = command_named(words)
    try:
        command.make_context(words[0], rest, **SETTINGS)  # a command keeps the names of its help from its first context
    except click.UsageError as error:
        pytest.fail(error.format_message())


def test_advice_is_found_and_what_does_not_exist_is_noticed():
    assert ("spec", "resume", PLACEHOLDER) in GIVEN
    assert {"spec resume", "doctor", "ckpt verify"} <= {*TOLD}
    assert unknown_in(["spec", "resmue", "runs"]) == "spec resmue runs"
    assert unknown_in(["spec", "run", "train.json", "--max-epochs", "3"]) == "--max-epochs"
    assert unknown_in(["trian"]) == "trian"
