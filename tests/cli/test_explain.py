"""`purestep explain`: every code that exists is explained, by commands that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import purestep
from purestep.cli import main
from purestep.cli.exits import ExitCode
from purestep.cli.explanations import explanations
from purestep.cli.program import Program
from purestep.spec.problems import CODES

ROOT = Path(purestep.__file__).parent
KNOWN = explanations()
COMMANDS = sorted({found for text in KNOWN.values() for part in text for found in re.findall(r"`purestep ([a-z ]+)", part)})


def explain(*words):
    return CliRunner().invoke(main, ["explain", *words])


def codes_in_the_sources():
    return {code for path in ROOT.rglob("*.py") for code in re.findall(r"\bPS\d{3}\b", path.read_text(encoding="utf-8"))}


def test_every_code_of_the_package_is_explained_and_no_other():
    assert set(KNOWN) == {*CODES, *(str(int(code)) for code in ExitCode)}


def test_no_code_is_used_that_has_no_meaning():
    assert codes_in_the_sources() == set(CODES)


def test_every_explanation_is_written_out():
    assert [code for code, found in KNOWN.items() for text in found[1:] if not text.endswith(".")] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_an_explanation_names_exists(words):
    place = main
    for word in words.split():
        assert isinstance(place, Program)
        place = place.get_command(None, word)
    assert place is not None


def test_one_code_is_told_in_full_in_either_case():
    done = explain("ps104")
    assert (done.exit_code, done.stderr, done.stdout) == (0, "", explain("PS104").stdout)
    assert done.stdout.startswith("PS104  a value of the wrong type\n\n  A value is of another JSON type")
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_without_a_code_all_are_listed():
    lines = explain().stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(KNOWN)


def test_several_codes_as_json():
    document = json.loads(explain("75", "PS501", "--json").stdout)
    assert list(document["codes"]) == ["75", "PS501"]
    assert document["codes"]["75"]["meaning"] == "interrupted with a good checkpoint"


def test_a_code_that_does_not_exist_is_a_wrong_command_line():
    done = explain("PS1044")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'PS104'" in done.stderr


def test_explaining_loads_nothing_heavy():
    script = (
        "import sys\nfrom purestep.cli import main\nmain(['explain', 'PS104'], standalone_mode=False)\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "pydantic", "zarr"}.isdisjoint(done.stderr.split())
