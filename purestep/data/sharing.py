"""Structures that stand in two parts at once, or in two stores: what is learned by heart there looks like understanding."""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .layout import SPLITS
from .splitting import content_hash
from .store import AtomicStore


class Shared(NamedTuple):
    """Equal structures of two parts."""

    one: str
    other: str
    num_structures: int
    """Different structures that both have."""
    example: tuple[int, int]
    """A frame of each, numbers in their stores."""


def shared_structures(stores: Mapping[str, AtomicStore]) -> list[Shared]:
    """Find the structures that two parts of the given stores have in common; labels are not compared.

    Args:
        stores: By name. A store with a split counts as its parts, `name (train)` and so on.

    Returns:
        Every pair of parts that shares something.
    """
    parts = {name: found for title, store in stores.items() for name, found in _parts(title, store).items()}
    found = []
    for one, other in itertools.combinations(parts, 2):
        both = [key for key in parts[one] if key in parts[other]]
        if both:
            found.append(Shared(one, other, len(both), (parts[one][both[0]], parts[other][both[0]])))
    return found


def _parts(title: str, store: AtomicStore) -> dict[str, dict[str, int]]:
    """The first frame of each structure, by its hash, by name of the part."""
    split = store.column("split") if "split" in store.levels else np.full(len(store), -1)
    named: dict[str, dict[str, int]] = {}
    for number in range(len(store)):
        part = int(split[number])
        name = f"{title} ({SPLITS[part]})" if 0 <= part < len(SPLITS) else title
        named.setdefault(name, {}).setdefault(content_hash(store[number]), number)
    return named
