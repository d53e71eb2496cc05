"""JSON with positions: where in a file each value stands, and every ambiguity of the text. What the values mean is not looked at."""

import json
import json.decoder
import math
import re
from typing import Any, NamedTuple

from .problems import Problem

MAX_DEPTH = 64
NOWHERE = -1
"""The offset of what does not stand in the text."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_LONGEST_INTEGER = 4000  # digits; Python refuses to convert more than 4300


class Document(NamedTuple):
    """What a text says, and where it says it."""

    value: Any
    offsets: dict[str, int]
    """Offset of each value, and of each key of an object, by JSON pointer; that of a key is under `pointer + "#"`."""
    problems: list[Problem]
    """Keys that occur twice, numbers that are not finite, text that is not JSON."""


def read(text: str) -> Document:
    """Read a text; of text that is no JSON the value is None, and the problem says where it ceases to be."""
    scanner = _Scanner(text)
    try:
        value = scanner.value(0, "", 0)[0]
        scanner.end_of_text()
    except _SyntaxError as error:
        return Document(None, scanner.offsets, [Problem("PS100", "", f"not JSON: {error.args[0]}", *line_and_column(text, error.offset))])
    return Document(value, scanner.offsets, scanner.problems)


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def escape(key: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


class _SyntaxError(Exception):
    def __init__(self, message: str, offset: int):
        super().__init__(message)
        self.offset = offset


class _Scanner:
    """One pass over a text; each method returns a value and the offset behind it."""

    def __init__(self, text: str):
        self.text = text
        self.offsets: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._end = 0

    def value(self, at: int, pointer: str, depth: int) -> tuple[Any, int]:
        at = self._space(at)
        self.offsets[pointer] = at
        if depth > MAX_DEPTH:
            raise _SyntaxError(f"nesting deeper than {MAX_DEPTH}", at)
        first = self.text[at : at + 1]
        value: Any
        if first == "{":
            value, at = self._object(at + 1, pointer, depth)
        elif first == "[":
            value, at = self._array(at + 1, pointer, depth)
        else:
            value, at = self._string(at) if first == '"' else self._plain(at, pointer)
        self._end = at
        return value, at

    def end_of_text(self) -> None:
        """Refuse what stands behind the document."""
        at = self._space(self._end)
        if at != len(self.text):
            raise _SyntaxError("text behind the end of the document", at)

    def _object(self, at: int, pointer: str, depth: int) -> tuple[dict[str, Any], int]:
        fields: dict[str, Any] = {}
        at = self._space(at)
        while self.text[at : at + 1] != "}":
            if fields:
                at = self._space(self._expect(",", at))
            if self.text[at : at + 1] != '"':
                raise _SyntaxError("expected a key in double quotes", at)
            key, after = self._string(at)
            inner = f"{pointer}/{escape(key)}"
            if key in fields:
                message = f"the key {key[:80]!r} occurs twice; keep one of them"
                self.problems.append(Problem("PS106", inner, message, *line_and_column(self.text, at)))
            self.offsets[inner + "#"] = at
            fields[key], at = self.value(self._expect(":", self._space(after)), inner, depth + 1)
            at = self._space(at)
        return fields, at + 1

    def _array(self, at: int, pointer: str, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._space(at)
        while self.text[at : at + 1] != "]":
            if items:
                at = self._expect(",", at)
            item, at = self.value(at, f"{pointer}/{len(items)}", depth + 1)
            items.append(item)
            at = self._space(at)
        return items, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        try:
            text, end = json.decoder.scanstring(self.text, at + 1, True)  # type: ignore[attr-defined]
        except json.JSONDecodeError as error:
            raise _SyntaxError(error.msg[0].lower() + error.msg[1:], error.pos) from error
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _SyntaxError("half of a surrogate pair", at)
        if "\0" in text:
            raise _SyntaxError("the character \\u0000, which no path and no name can hold", at)
        return text, end

    def _plain(self, at: int, pointer: str) -> tuple[Any, int]:
        for word, value in _WORDS.items():
            if self.text.startswith(word, at):
                return value, at + len(word)
        if word := next((word for word in _NOT_FINITE if self.text.startswith(word, at)), ""):
            self._not_finite(word, at, pointer)
            return None, at + len(word)
        number = _NUMBER.match(self.text, at)
        if number is None:
            raise _SyntaxError("the text ends here" if at == len(self.text) else f"unexpected {self.text[at]!r}", at)
        return self._number(number, pointer), number.end()

    def _number(self, match: re.Match[str], pointer: str) -> float | int | None:
        text = match.group()
        if match["fraction"] is None and match["exponent"] is None:
            if len(text) <= _LONGEST_INTEGER:
                return int(text)
        elif math.isfinite(value := float(text)):
            return value
        self._not_finite(text, match.start(), pointer)
        return None

    def _not_finite(self, text: str, at: int, pointer: str) -> None:
        message = f"{text[:40]} is not a finite number of float64"
        self.problems.append(Problem("PS107", pointer, message, *line_and_column(self.text, at)))

    def _space(self, at: int) -> int:
        return _SPACE.match(self.text, at).end()  # type: ignore[union-attr]

    def _expect(self, mark: str, at: int) -> int:
        if self.text[at : at + 1] != mark:
            found = repr(self.text[at]) if at < len(self.text) else "the end of the text"
            raise _SyntaxError(f"expected {mark!r}, got {found}", at)
        return at + 1


def dump(value: Any) -> str:
    """A value as text again."""
    return json.dumps(value)
