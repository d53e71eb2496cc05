"""Which part of a split a frame belongs to, from its group or its content alone: the same whatever else is in the data set."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np


class HashSplit(NamedTuple):
    """Parts drawn by hash.

    Args:
        validation: Share of the validation part.
        test: Share of the test part; the rest trains.
        by: "group" keeps the frames of a group together; "content" draws frame by frame, equal frames alike.
        seed: Another seed draws other parts.
    """

    validation: float = 0.1
    test: float = 0.1
    by: Literal["group", "content"] = "group"
    seed: int = 0


def check_split(split: HashSplit) -> None:
    """Refuse shares that are none.

    Raises:
        ValueError: With the shares.
    """
    if not (split.validation >= 0 and split.test >= 0 and split.validation + split.test < 1):
        raise ValueError(f"shares of validation and test must be at least 0 and leave something, got {split.validation} and {split.test}")
    if split.by not in ("group", "content"):
        raise ValueError(f"split by must be 'group' or 'content', got {split.by!r}")


def part_of(split: HashSplit, name: str) -> int:
    """0, 1 or 2, for train, validation or test, of what has this name."""
    digest = hashlib.sha256(f"{split.seed}\n{name}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    return 2 if draw < split.test else 1 if draw < split.test + split.validation else 0


def content_hash(frame: Mapping[str, Any], decimals: int = 6) -> str:
    """Hash of the structure, not its labels: numbers, positions, cell and periodic directions, rounded."""
    digest = hashlib.sha256(np.asarray(frame["numbers"], dtype=np.uint8).tobytes())
    for key in ("positions", "cell"):
        if key in frame:
            digest.update((np.round(frame[key], decimals) + 0.0).astype("<f8").tobytes())  # + 0.0: no negative zeros
    digest.update(np.asarray(frame.get("pbc", np.zeros(3)), dtype=np.uint8).tobytes())
    return digest.hexdigest()
