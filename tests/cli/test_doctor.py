import json

from click.testing import CliRunner

from purestep import __version__
from purestep.cli import main
from purestep.cli.doctor import driver_of, settings_in


def test_doctor_prints_one_document_that_names_what_matters():
    result = CliRunner().invoke(main, ["doctor", "--json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (document["schema"], document["purestep"]) == ("purestep.doctor/1", __version__)
    assert document["packages"]["torch"]
    assert {"python", "platform", "cores", "packages", "devices", "driver", "compilers", "disk", "environment"} <= document.keys()


def test_doctor_prints_a_line_for_each_finding():
    lines = CliRunner().invoke(main, ["doctor"]).stdout.splitlines()
    assert any(line.startswith("packages") and "torch 2" in line for line in lines)


def test_doctor_shows_what_changes_a_run_and_no_keys():
    environment = {"PURESTEP_TRUST": "my.models", "RANK": "1", "WANDB_API_KEY": "secret", "HOME": "/home/me"}
    assert settings_in(environment) == {"PURESTEP_TRUST": "my.models", "RANK": "1", "WANDB_API_KEY": "(set)"}


def test_the_driver_is_read_from_what_it_says_of_itself():
    assert driver_of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023") == "535.104.05"
    assert driver_of("") is None
