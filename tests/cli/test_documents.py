import json
import math

import pytest

from purestep.cli import documents


def test_a_document_is_strict_json(tmp_path):
    path = str(tmp_path / "document.json")
    documents.write(path, {"loss": math.nan, "list": [1, -math.inf], "inner": {"text": "Å"}})
    with open(path, encoding="utf-8") as file:
        assert json.load(file, parse_constant=pytest.fail) == {"loss": None, "list": [1, None], "inner": {"text": "Å"}}


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = str(tmp_path / "document.json")
    documents.write(path, {"number": 1})
    with pytest.raises(TypeError):
        documents.write(path, {"number": object()})
    assert documents.read(path) == {"number": 1}
