"""Parts that stores bring along: which of them a run trains and validates on, if nobody has said otherwise.

A new spec is written before anything is computed, so nothing here loads torch, which `purestep.data` does, unless a store needs it: of a
store in a directory only its column of parts is read.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import DataError
from .paths import SHIPPED

SPLITS = ("train", "validation", "test")
"""Names of the parts, by their number in a store."""


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a store that hold frames; none if it cannot be read, which the run will say."""
    try:
        numbers = set(_shipped_column(path) if path.startswith(SHIPPED) else _column(path))
    except (DataError, OSError, KeyError, ValueError, TypeError):
        return ()
    return tuple(name for number, name in enumerate(SPLITS) if number in numbers)


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


def _shipped_column(path: str) -> Iterator[int]:
    from .building import open_store

    yield from open_store(path).column("split").tolist()


def _column(path: str) -> Iterator[int]:
    """The number of the part of each frame; a store that was appended to is several groups."""
    if not os.path.isdir(path):
        return
    import zarr

    group: Any = zarr.open_group(path, mode="r", zarr_format=3)
    for segment in group.attrs.get("segments", [{"path": ""}]):
        yield from (group[segment["path"]] if segment["path"] else group)["split"][:].tolist()
