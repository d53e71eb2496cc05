"""Parts of the leaves of a state that several processes save: what each hands over, reads, and reports.

Plain records, for those who cut states and for those who write files, who know nothing of each other.
"""

from typing import Any, NamedTuple


class Box(NamedTuple):
    """A part of a larger tensor: where it begins, and the shape of the whole."""

    offset: tuple[int, ...]
    whole: tuple[int, ...]


class Part(NamedTuple):
    """What one rank holds of a leaf; without a box the whole of it, which then only one rank may hand in."""

    path: str
    leaf: Any
    box: Box | None = None


class Wanted(NamedTuple):
    """A box of a leaf to read, and its size."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]


class RankReport(NamedTuple):
    """What one rank has written, as plain JSON."""

    files: list[dict[str, Any]]
    leaves: list[dict[str, Any]]
    finite: bool = True
    """Whether its parts of the weights are."""
