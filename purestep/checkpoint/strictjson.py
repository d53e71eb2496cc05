"""JSON with exactly one meaning: canonical when written, and refused when read if it is ambiguous, non-finite or too deep."""

import gc
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_DEPTH = 64


def dump(value: Any) -> bytes:
    """Canonical text: sorted keys, no spaces, ASCII only.

    Raises:
        TypeError: For a key that is not text, or a value that JSON lacks.
        ValueError: For NaN and infinities.
    """
    _check_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def load(text: bytes) -> Any:
    """Parse text that `dump` could have written.

    Raises:
        ValueError: For invalid UTF-8 or JSON, a key that occurs twice, a number that is not finite, or nesting deeper than 64.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=unique_keys, parse_float=_finite, parse_constant=_not_finite)
    except RecursionError as error:
        raise ValueError(f"nesting deeper than {MAX_DEPTH}") from error
    _check_depth(value)
    return value


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector away while very many objects are made that all stay: it takes most of the time otherwise."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its pairs; a key that occurs twice is an error."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {twice[:80]!r}")
    return fields


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _not_finite(text: str) -> Any:
    raise ValueError(f"{text} is not a finite number")


def _check_keys(value: Any) -> None:
    """Refuse what `json.dumps` would turn into text without a word."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not text")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [
        inner
        for outer in level
        if isinstance(outer, (dict, list))
        for inner in (outer.values() if isinstance(outer, dict) else outer)
        if isinstance(inner, (dict, list))
    ]:
        depth += 1
        if depth >= MAX_DEPTH:
            raise ValueError(f"nesting deeper than {MAX_DEPTH}")
