"""The page of questions and answers names tests that exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "semantics.md"
ROWS = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
ANSWERS = [[cell.strip() for cell in row] for row in ROWS if row[0].strip() != "question"]


def functions_of(file: str) -> set[str]:
    return {node.name for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_row_has_a_question_an_answer_a_source_and_a_test():
    assert len(ANSWERS) > 60
    assert [row for row in ANSWERS if len(row) != 4 or not all(row) or not re.fullmatch(r"`[\w/]+\.py::test_\w+`", row[3])] == []


def test_the_test_of_every_row_exists():
    named = [row[3].strip("`").split("::") for row in ANSWERS]
    assert [f"{file}::{name}" for file, name in named if not (TESTS / file).exists() or name not in functions_of(file)] == []


def test_no_question_is_asked_twice():
    questions = [row[0] for row in ANSWERS]
    assert len(set(questions)) == len(questions)
