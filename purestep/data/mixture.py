"""Several data sets as one, mixed by weights or by a fixed allocation in each batch; every draw follows from its place alone."""

import dataclasses
import functools
import hashlib
import itertools
from typing import Any, Literal, get_args

import numpy as np

from ..errors import DataError
from .layout import missing_values, rows_of
from .order import Samples, index_at, uniform_at

EpochPolicy = Literal["sum", "shortest", "longest"]

_NOT_FILLED = ("group", "split", "edge_index", "edge_shift")  # the first two never reach a batch; without the others there is a list


class Joined:
    """Data sets one after the other.

    What only some of them have is NaN in the frames of the others, as in a store of several parts.

    Args:
        datasets: Each with `__len__` and `__getitem__(int)`. Data sets of frames may say what `levels` their arrays have, as stores do.

    Raises:
        DataError: If two state different levels for one array.
    """

    def __init__(self, *datasets: Samples):
        if not datasets or not all(map(len, datasets)):
            raise ValueError(f"give data sets with samples, got the sizes {[len(dataset) for dataset in datasets]}")
        self.datasets = datasets
        self.levels = _merged_levels(datasets)
        self.starts = np.array([0, *itertools.accumulate(map(len, datasets))])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each."""
        return tuple(map(len, self.datasets))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        sample = self.datasets[number][index - int(self.starts[number])]
        missing = [key for key in self._examples if key not in sample]
        return {**sample, **{key: self._absent(key, sample) for key in missing}} if missing else sample

    @property
    def fingerprint(self) -> str:
        """Hash of the fingerprints of all."""
        parts = [getattr(dataset, "fingerprint", f"{type(dataset).__qualname__} of {len(dataset)}") for dataset in self.datasets]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @functools.cached_property  # computed twice by two threads it is the same
    def _examples(self) -> dict[str, np.ndarray]:
        """One value of each array that can be filled up, for the shape of its rows and its dtype."""
        stating = [dataset for dataset in self.datasets if hasattr(dataset, "levels")]
        return {key: value for dataset in reversed(stating) for key, value in dataset[0].items() if key not in _NOT_FILLED}

    def _absent(self, key: str, frame: Any) -> np.ndarray:
        """What stands for an array that a frame's data set does not have."""
        like, level = self._examples[key], self.levels[key]
        row = like.shape if level == "frame" else like.shape[1:]
        return missing_values(key, (*rows_of(frame, level), *row), like.dtype)


def _merged_levels(datasets: tuple[Samples, ...]) -> dict[str, str]:
    levels: dict[str, str] = {}
    for number, dataset in enumerate(datasets):
        for key, level in getattr(dataset, "levels", {}).items():
            if levels.setdefault(key, level) != level:
                raise DataError(
                    f"{key}: rows per {level} in data set {number}, but per {levels[key]} in one before it; write one of them anew, "
                    "with another name or the same level"
                )
    return levels


@dataclasses.dataclass(frozen=True)
class MixedBatches:
    """Batches drawn from several data sets, which stand one after the other as in `Joined`.

    Exactly one of `weights` and `per_batch` says how they mix. A data set that ends before the epoch does begins again in another
    order, so that its samples come equally often, give or take one.

    Args:
        sizes: Number of samples of each data set.
        batch_size: Samples of a batch on each rank.
        weights: Each sample of a batch is of data set `d` with a probability proportional to `weights[d]`.
        per_batch: Each batch holds `per_batch[d]` samples of data set `d`; they sum to `batch_size`. `balanced(batch_size, count)`
            gives equal ones.
        epoch: What an epoch is: "sum", as many samples as all data sets have; "shortest" or "longest", until each, on average, would
            have given the samples of the first, or of the last, that comes to its end.
        replacement: "without": a sample comes again only when all others of its data set have come; "with": each draw is of its own.
        seed: Chooses the draws.
    """

    sizes: tuple[int, ...]
    batch_size: int
    weights: tuple[float, ...] | None = None
    per_batch: tuple[int, ...] | None = None
    epoch: EpochPolicy = "sum"
    replacement: Literal["with", "without"] = "without"
    seed: int = 0

    def __post_init__(self) -> None:
        given = [numbers for numbers in (self.weights, self.per_batch) if numbers is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of weights and per_batch")
        if len(given[0]) != len(self.sizes):
            raise ValueError(f"{len(self.sizes)} data sets need as many weights or counts, got {given[0]}")
        if not all(0 < number < float("inf") for number in given[0]):
            raise ValueError(f"weights and counts must be positive, got {given[0]}; leave a data set out to draw none of it")
        if self.per_batch is not None and sum(self.per_batch) != self.batch_size:
            raise ValueError(f"per_batch {self.per_batch} must sum to batch_size {self.batch_size}")
        if self.epoch not in get_args(EpochPolicy) or self.replacement not in ("with", "without"):
            raise ValueError(f"unknown epoch {self.epoch!r} or replacement {self.replacement!r}")

    def num_batches(self, world: int = 1) -> int:
        """Batches of one epoch on each rank; the last may hold draws beyond the end of the epoch."""
        shares = self.weights or self.per_batch or ()
        if self.epoch == "sum":
            draws: float = sum(self.sizes)
        else:
            ends = [size * sum(shares) / share for size, share in zip(self.sizes, shares, strict=True)]
            draws = min(ends) if self.epoch == "shortest" else max(ends)
        return max(1, int(np.ceil(draws / (self.batch_size * world) - 1e-9)))

    def indices(self, epoch: int, index: int, *, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Samples of one batch, all of which count."""
        place = index * world + rank
        source, draw = self._fixed(place) if self.per_batch else self._weighted(epoch, place, world)
        chosen = np.empty(self.batch_size, dtype=np.int64)
        for number, start in enumerate(itertools.accumulate((0, *self.sizes[:-1]))):
            mine = source == number
            chosen[mine] = start + self._samples(number, epoch, draw[mine])
        return chosen, np.ones(self.batch_size, dtype=bool)

    @property
    def fingerprint(self) -> str:
        """Of all settings."""
        return repr(self)

    def _fixed(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Data set of each sample of a batch, and how often that set was drawn from before."""
        assert self.per_batch is not None
        source = np.repeat(np.arange(len(self.sizes)), self.per_batch)
        return source, np.concatenate([np.arange(count) + place * count for count in self.per_batch])

    def _weighted(self, epoch: int, place: int, world: int) -> tuple[np.ndarray, np.ndarray]:
        source, draw = _draws(self, epoch, self.num_batches(world) * world * self.batch_size)
        batch = slice(place * self.batch_size, (place + 1) * self.batch_size)
        return source[batch], draw[batch]

    def _samples(self, number: int, epoch: int, draw: np.ndarray) -> np.ndarray:
        """The samples of one data set, by the number of the draw in the epoch."""
        size = self.sizes[number]
        if self.replacement == "with":
            return (uniform_at(self._key(number, epoch, 0), draw) * size).astype(np.int64)
        chosen, passes = np.empty(len(draw), dtype=np.int64), draw // size
        for pass_number in np.unique(passes).tolist():
            mine = passes == pass_number
            chosen[mine] = index_at(self._key(number, epoch, pass_number), 0, draw[mine] % size, size)
        return chosen

    def _key(self, *parts: int) -> int:
        return int.from_bytes(hashlib.sha256(repr((self.seed, *parts)).encode()).digest()[:8], "little")


def balanced(batch_size: int, count: int) -> tuple[int, ...]:
    """A fixed allocation, as equal as can be.

    Example:
        >>> balanced(8, 3)
        (3, 3, 2)
    """
    share, rest = divmod(batch_size, count)
    if share == 0:
        raise ValueError(f"a batch of {batch_size} cannot hold samples of {count} data sets")
    return tuple(share + (number < rest) for number in range(count))


@functools.lru_cache(maxsize=4)
def _draws(plan: MixedBatches, epoch: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Data set of each sample of an epoch, and how often that set was drawn from before; one pass over the epoch, remembered."""
    weights = np.array(plan.weights)
    edges = np.cumsum(weights) / weights.sum()
    source = np.searchsorted(edges[:-1], uniform_at(plan._key(epoch), np.arange(count)), side="right")
    draw = np.empty(count, dtype=np.int64)
    for number in range(len(plan.sizes)):
        mine = source == number
        draw[mine] = np.arange(mine.sum())
    return source, draw
