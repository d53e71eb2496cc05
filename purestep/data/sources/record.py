"""What every source yields: one structure, as it was found."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One structure in the names and units of its source, or why it could not be read."""

    source: str
    """File, or what else to name to the user."""
    number: int
    """Of the structure in its source, from 0."""
    values: Mapping[str, Any]
    fault: str = ""
    """Why it, and what follows in the same source, could not be read."""
