"""From what the user calls batches to one batch after another: refusals, the rest of an epoch, all ranks in step."""

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core import tree
from ..core.ranks import Ranks


def check_batches(batches: Any) -> None:
    """Refuse what looks like one batch, or is nothing that can be iterated.

    Raises:
        TypeError: Saying what to give instead.
    """
    if hasattr(batches, "epoch"):
        return
    kind = type(batches).__name__
    if isinstance(batches, Mapping | str | bytes) or hasattr(batches, "__array__") or _is_record(batches):
        raise TypeError(f"fit: batches must be several of them, got one {kind}; give a Loader, or a list of batches: [batch]")
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        advice = "call it and give the result in a list" if callable(batches) else "give a Loader or a list of batches"
        raise TypeError(f"fit: batches must be something to iterate over, got {kind}; {advice}")


def _is_record(batches: Any) -> bool:
    """Whether this is a tree with named fields, an `AtomicBatch` or a NamedTuple of tensors."""
    has_fields = hasattr(batches, "_fields") or dataclasses.is_dataclass(batches)
    return has_fields and any(isinstance(leaf, Tensor) for leaf in tree.leaves(batches))


def no_batches_text(batches: Any, epoch: int) -> str:
    """Why an epoch had no batches, as far as one can see."""
    kind = type(batches).__name__
    if hasattr(batches, "__next__"):
        when = f"after {epoch} epoch{'' if epoch == 1 else 's'} it" if epoch else "it"
        return (
            f"fit: the data has no batches left: batches is a {kind}, an iterator that was used up; {when} cannot begin again; "
            "give a list, a Loader, or an object whose __iter__ begins anew each time"
        )
    return f"fit: the data has no batches: {kind} gives none in epoch {epoch}; is the set empty, or smaller than one batch?"


def size_of(batches: Any) -> int | None:
    """Batches of an epoch, where known."""
    return len(batches) if hasattr(batches, "__len__") else None


def rest_of_epoch(batches: Any, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from number `start` on; only a plain iterable has to be read up to there."""
    if hasattr(batches, "epoch"):
        return iter(batches.epoch(epoch, start))
    if isinstance(batches, Sequence):
        return (batches[place] for place in range(start, len(batches)))
    return itertools.islice(batches, start, None)


def in_step(ranks: Ranks, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches as long as every rank has one; an error in reading is one of all ranks."""
    if ranks.world_size == 1:
        yield from batches
        return
    end = object()
    while True:
        try:
            batch = next(batches, end)
        except Exception as error:
            ranks.settle(error=error)
            raise
        if ranks.settle("end" if batch is end else None) is not None:
            if batch is not end:
                warnings.warn(f"the data of another rank has ended, so rank {ranks.rank} leaves the rest of its own", stacklevel=2)
            return
        yield batch
