"""Refusing to continue a run under other conditions: what was saved beside the state, compared with what is now."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StructureMismatchError
from .match import covered

_ABSENT = "absent"


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any], *, allow: Sequence[str] = (), what: str = "the run") -> None:
    """Compare two plain descriptions, field by field.

    Args:
        saved: As it was, from `load_extra`.
        now: As it is.
        allow: Patterns of dotted fields that may differ, such as `data.*`.
        what: What an error calls the thing described.

    Raises:
        StructureMismatchError: If a field differs that is not allowed to; all of them are listed.

    Example:
        >>> check_same({"data": {"batch_size": 4}}, {"data": {"batch_size": 8}}, allow=["data.batch_size"])
    """
    old, new = _fields(saved), _fields(now)
    different = sorted(name for name in old.keys() | new.keys() if old.get(name, _ABSENT) != new.get(name, _ABSENT))
    allowed = covered(allow, different)
    lines = [f"{name}: saved {old.get(name, _ABSENT)}, now {new.get(name, _ABSENT)}" for name in different if name not in allowed]
    if lines:
        raise StructureMismatchError(
            f"{what} is not the one that was saved; {len(lines)} fields differ:\n  "
            + "\n  ".join(lines[:50])
            + "\nput them back, or allow the change by name"
        )


def _fields(value: Any, prefix: str = "") -> dict[str, str]:
    """Text of every value by dotted name; texts tell 1 from True and from 1.0."""
    if isinstance(value, Mapping) and value:
        return {name: text for key, inner in value.items() for name, text in _fields(inner, f"{prefix}{key}.").items()}
    if isinstance(value, list | tuple) and value:
        return {name: text for index, inner in enumerate(value) for name, text in _fields(inner, f"{prefix}{index}.").items()}
    return {prefix.removesuffix("."): repr(value)}
