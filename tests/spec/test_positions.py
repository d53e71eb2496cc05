import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purestep.spec.positions import line_and_column, read

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))  # a spec takes no NUL
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
@settings(max_examples=200, deadline=None)
def test_what_json_writes_is_read_as_json_reads_it(value, indent, ascii_only):
    document = read(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert (document.value, document.problems) == (value, [])


@given(text=st.text(max_size=30) | st.text('{}[]",:0123456789.eE+-tfn \n', max_size=30))
@settings(max_examples=500, deadline=None)
def test_what_is_no_json_is_a_problem_and_never_an_exception(text):
    document = read(text)
    assert (document.problems == []) == is_strict_json(text)


def is_strict_json(text):
    def refuse(value):
        raise ValueError(value)

    def unique(pairs):
        return dict(pairs) if len(dict(pairs)) == len(pairs) else refuse(pairs)

    try:
        json.loads(
            text, parse_constant=refuse, object_pairs_hook=unique, parse_float=lambda t: float(t) if abs(float(t)) < 1e999 else refuse(t)
        )
    except ValueError:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@pytest.mark.parametrize(
    ("pointer", "place"), [("", (1, 1)), ("/a", (2, 8)), ("/a#", (2, 3)), ("/a/1", (3, 5)), ("/x~1y~0z", (4, 12)), ("/x~1y~0z#", (4, 3))]
)
def test_every_value_and_key_has_its_line_and_column(pointer, place):
    text = '{\n  "a": [1,\n    "two"],\n  "x/y~z": {}\n}'
    assert line_and_column(text, read(text).offsets[pointer]) == place


def test_a_long_integer_is_a_problem_and_not_an_exception():
    assert [problem.code for problem in read("9" * 5000).problems] == ["PS107"]
