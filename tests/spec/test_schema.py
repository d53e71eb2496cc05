"""The JSON Schema that editors read is that of the code."""

from pathlib import Path

from click.testing import CliRunner

from purestep.cli import main

STORED = Path(__file__).parents[2] / "docs/purestep.schema.json"


def test_the_stored_schema_is_that_of_the_code():
    # if this fails on purpose: purestep schema dump > docs/purestep.schema.json
    assert STORED.read_text(encoding="utf-8") == CliRunner().invoke(main, ["schema", "dump"]).stdout
