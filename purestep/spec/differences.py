"""What differs between two documents, value by value, each with its JSON pointer."""

import difflib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from .positions import escape


class _Absent:
    """In the place of a value that one of the documents does not have."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


class Difference(NamedTuple):
    """One value that is not the same."""

    pointer: str
    """In the first document; in the second, if the value is absent from the first."""
    before: Any
    after: Any

    def text(self) -> str:
        """One line: `+` for what came, `-` for what went, `~` for what is another value."""
        if self.before is ABSENT:
            return f"+ {self.pointer or '/'}: {_shown(self.after)}"
        if self.after is ABSENT:
            return f"- {self.pointer or '/'}: {_shown(self.before)}"
        return f"~ {self.pointer or '/'}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Any, after: Any, pointer: str = "") -> Iterator[Difference]:
    """Find what differs. Items that came into a list or went from it do not make all later ones different.

    Example:
        >>> [found.text() for found in differences({"a": [1, 2], "b": 3}, {"a": [2], "b": 4})]
        ['- /a/0: 1', '~ /b: 3 -> 4']
    """
    if isinstance(before, dict) and isinstance(after, dict) and _tags(before) == _tags(after):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _in_place(before.get(key, ABSENT), after.get(key, ABSENT), f"{pointer}/{escape(key)}")
    elif isinstance(before, list) and isinstance(after, list):
        yield from _in_lists(before, after, pointer)
    elif _key(before) != _key(after):
        yield Difference(pointer, before, after)


def _tags(value: dict[str, Any]) -> tuple[Any, Any]:
    """What an object says that it is; the fields of two different things are not compared."""
    return value.get("kind"), value.get("cls_path")


def _in_place(before: Any, after: Any, pointer: str) -> Iterator[Difference]:
    if before is ABSENT or after is ABSENT:
        yield Difference(pointer, before, after)
    else:
        yield from differences(before, after, pointer)


def _in_lists(before: list[Any], after: list[Any], pointer: str) -> Iterator[Difference]:
    blocks = difflib.SequenceMatcher(None, list(map(_key, before)), list(map(_key, after)), autojunk=False).get_opcodes()
    for _, old, old_end, new, new_end in blocks:
        shared = min(old_end - old, new_end - new)
        for i in range(shared):
            yield from differences(before[old + i], after[new + i], f"{pointer}/{old + i}")
        for i in range(old + shared, old_end):
            yield Difference(f"{pointer}/{i}", before[i], ABSENT)
        for i in range(new + shared, new_end):
            yield Difference(f"{pointer}/{i}", ABSENT, after[i])


def _key(value: Any) -> str:
    """Text that tells values apart as JSON does: 1 from true, and 1.0 is 1."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
