import json

from click.testing import CliRunner

from purestep import __version__
from purestep.cli import main


def test_doctor_prints_one_document_that_names_what_matters():
    result = CliRunner().invoke(main, ["doctor", "--json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (document["schema"], document["purestep"]) == ("purestep.doctor/1", __version__)
    assert document["packages"]["torch"]
    assert {"python", "platform", "cores", "packages", "devices", "compilers", "disk", "environment"} <= document.keys()


def test_doctor_prints_a_line_for_each_finding():
    lines = CliRunner().invoke(main, ["doctor"]).stdout.splitlines()
    assert any(line.startswith("packages") and "torch 2" in line for line in lines)
