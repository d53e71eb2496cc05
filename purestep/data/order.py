"""The order of samples: a shuffle that can be entered anywhere, as a pure function of (seed, epoch, position).

No list of indices is kept. Which samples form batch `index` on rank `rank` follows from numbers alone, so resuming reads nothing
twice, and runs on other numbers of ranks see the same samples.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, Protocol

import numpy as np

Last = Literal["pad", "drop", "keep"]

_ROUNDS = 8
_MASK = (1 << 64) - 1


def index_at(seed: int, epoch: int, position: np.ndarray | int, size: int) -> np.ndarray:
    """Shuffle: the sample at `position` of an epoch; a bijection of `0 .. size - 1`.

    A keyed Feistel network over `Z_a x Z_b` with `a b >= size > a b - a`; positions that land outside walk on until they land
    inside. Costs O(1) memory and time for each position.

    Args:
        position: Positions in the epoch, each in `[0, size)`.

    Returns:
        Sample indices, int64, of the shape of `position`.

    Reference:
        Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 4 (cycle walking) and 5 (generalized Feistel).
    """
    position = np.asarray(position, dtype=np.int64)
    if position.size and not (position.min() >= 0 and position.max() < size):
        raise ValueError(f"positions must lie in [0, {size}), got {position.min()} .. {position.max()}")
    keys = _round_keys(seed, epoch)
    index = _encrypt(position.astype(np.uint64).reshape(-1), keys, size)
    while (outside := index >= size).any():
        index[outside] = _encrypt(index[outside], keys, size)
    return index.astype(np.int64).reshape(position.shape)


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The whole order of one epoch, `(size,)`, int64.

    Example:
        >>> sorted(permutation(seed=0, epoch=3, size=5).tolist())
        [0, 1, 2, 3, 4]
    """
    return index_at(seed, epoch, np.arange(size), size)


def uniform_at(key: int, position: np.ndarray) -> np.ndarray:
    """Numbers in `[0, 1)`, float64, independent for all practical purposes, as a function of a key and positions."""
    bits = _mix(_mix(np.asarray(position, dtype=np.int64).astype(np.uint64), key & _MASK), (key * 0x9E3779B9) & _MASK)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def num_batches(size: int, batch_size: int, world: int = 1, last: Last = "pad") -> int:
    """Batches of one epoch, the same number on every rank."""
    per_step = batch_size * world
    return size // per_step if last == "drop" else -(-size // per_step)


def batch_indices(
    seed: int, epoch: int, index: int, batch_size: int, size: int, *, rank: int = 0, world: int = 1, shuffle: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Samples of one batch on one rank, and which of them count.

    Batch `index` of all ranks together covers positions `[index, index + 1) * batch_size * world`; rank `r` holds the `r`-th part.
    Positions after the end of the epoch are filled with samples from its beginning, whose weight is 0.

    Returns:
        Sample indices `(batch_size,)`, int64, and a mask of the same shape: False where the sample only fills up.
    """
    start = (index * world + rank) * batch_size
    position = np.arange(start, start + batch_size)
    real = position < size
    position = position % size
    return (index_at(seed, epoch, position, size) if shuffle else position), real


class Samples(Protocol):
    """Anything that has a length and gives a sample for a number: a list, a store, prepared frames."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchPlan(Protocol):
    """Which samples a batch holds, as a pure function of its place; `EvenBatches`, `BudgetBatches` and `Mixture` are some."""

    def num_batches(self, world: int = 1) -> int:
        """Batches of one epoch, the same number on every rank and in every epoch."""

    def indices(self, epoch: int, index: int, *, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Samples of one batch, and a mask that is False for those that only fill up."""

    @property
    def fingerprint(self) -> str:
        """Changes when the batches do."""


@dataclasses.dataclass(frozen=True)
class EvenBatches:
    """Batches of equally many samples, in an order that every epoch shuffles anew.

    Args:
        size: Number of samples.
        batch_size: Samples of a batch on each rank.
        seed: Chooses the shuffled orders.
        shuffle: Whether each epoch has an order of its own.
        last: What happens to the end of an epoch that fills no whole batch; see `Loader`.
    """

    size: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    last: Last = "pad"

    def num_batches(self, world: int = 1) -> int:
        """Batches of one epoch on each rank."""
        return num_batches(self.size, self.batch_size, world, self.last)

    def indices(self, epoch: int, index: int, *, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Samples of one batch, and which of them count."""
        chosen, real = batch_indices(self.seed, epoch, index, self.batch_size, self.size, rank=rank, world=world, shuffle=self.shuffle)
        return (chosen[real], real[real]) if self.last == "keep" else (chosen, real)

    @property
    def fingerprint(self) -> str:
        """Of the batches of one rank."""
        return repr(self)


def _encrypt(value: np.ndarray, keys: tuple[int, ...], size: int) -> np.ndarray:
    """A bijection of `0 .. a b - 1`, with `a` and `b` as equal as they can be: `left` lives in Z_a, `right` in Z_b, and they take turns."""
    a = math.isqrt(size - 1) + 1 if size > 1 else 1
    b = -(-size // a)
    left: np.ndarray = value % np.uint64(a)
    right: np.ndarray = value // np.uint64(a)
    for key in keys:
        left, right = right, (left + _mix(right, key) % np.uint64(a)) % np.uint64(a)
        a, b = b, a
    return left + right * np.uint64(a)


def _mix(value: np.ndarray, key: int) -> np.ndarray:
    """Hash of 64-bit integers under a key: the finaliser of splitmix64 (Steele et al. 2014, figure 16)."""
    x = value * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """One key per round; seed and epoch are absorbed one after the other, so that (0, 1) and (1, 0) share nothing."""
    absorbed = _mix(_mix(np.array([seed & _MASK], dtype=np.uint64), 0), epoch & _MASK)
    return tuple(int(_mix(absorbed, number + 1)[0]) for number in range(_ROUNDS))
