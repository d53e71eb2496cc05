"""Versions of the envelope: the table of steps between them, and how a document is brought to the version of today.

A row takes a document of one version and gives that of the next. Rows are never removed: an old spec stays readable.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .envelope import VERSION
from .reference_envelope import from_reference, is_reference

Migration = Callable[[Any], tuple[Any, Any]]


def _from_reference(document: Any) -> tuple[Any, list[str]]:
    document, notes = from_reference(document)
    return document, notes.lines


MIGRATIONS: Mapping[int, Migration] = {0: _from_reference}
"""Step to the next version, by the version it starts from. 0 is the form of the toolkit whose envelope ours resembles."""


class Upgraded(NamedTuple):
    """A document of the newest version, and what was done to it, a line each."""

    document: Any
    notes: tuple[str, ...]


def version_of(document: Any) -> Any:
    """What a document says it is; 0 for one that says nothing and is of the other toolkit."""
    if not isinstance(document, dict):
        return None
    return document["spec_version"] if "spec_version" in document else (0 if is_reference(document) else None)


def upgrade(document: Any, table: Mapping[int, Migration] = MIGRATIONS, newest: int = VERSION) -> Upgraded:
    """Bring a document to the newest version; one whose version is unknown stays as it is, and reading it says so."""
    version, notes = version_of(document), []
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < newest:
        return Upgraded(document, ())
    for number in range(version, newest):
        if number not in table:
            break
        document, lines = table[number](document)
        notes += lines
    return Upgraded(document, tuple(notes))
