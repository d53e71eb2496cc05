"""Parts that stores bring along: which of them a run trains and validates on, if nobody has said otherwise."""

from collections.abc import Sequence

from ..data.layout import SPLITS
from ..errors import DataError
from .building import open_store


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a store that hold frames; none if it cannot be read, which the run will say."""
    try:
        store = open_store(path)
        return tuple(name for name in SPLITS if len(store.split(name)))
    except (DataError, OSError, KeyError):
        return ()


def has_parts(path: str) -> bool:
    """Whether the frames of a store are in more than one part."""
    return len(parts_of(path)) > 1


def own_split(paths: Sequence[str]) -> str | None:
    """The part to train on: "train", if some store has others beside it and none is without it."""
    found = [parts_of(path) for path in paths]
    return "train" if any(len(parts) > 1 for parts in found) and all("train" in parts for parts in found) else None


def own_validation_split(paths: Sequence[str]) -> str | None:
    """The part to validate on, where no other stores are given: "validation", if every store has it beside others."""
    found = [parts_of(path) for path in paths]
    return "validation" if all("validation" in parts and len(parts) > 1 for parts in found) else None
