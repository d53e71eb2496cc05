"""Batches of like cost: how samples are cut into batches by number, by atoms or by edges, and which few sizes batches are padded to."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import DataError
from .order import EvenBatches, permutation
from .padding import Padding, sizes_of


@dataclasses.dataclass(frozen=True, eq=False)
class BudgetBatches:
    """Batches that hold about equally much, for samples of different sizes; every sample comes once an epoch.

    The shuffled samples lie end to end on a line as long as their sizes together; it is cut into equal pieces, and a sample belongs to
    the piece in which its middle lies. So an epoch has the same number of batches each time, none holds more than the budget, and a
    batch follows from (seed, epoch, index) alone. To find it costs one pass over the sizes, which is remembered for the last epochs.

    Args:
        sizes: Atoms, or edges, of each sample, `(size,)`.
        budget: The most that a batch may hold.
        seed: Chooses the shuffled orders.

    Raises:
        DataError: If a sample is larger than the budget.
    """

    sizes: np.ndarray
    budget: int
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.asarray(self.sizes, dtype=np.int64))
        if len(self.sizes) == 0:
            raise DataError("there are no samples to make batches of")
        largest = int(self.sizes.max())
        if largest > self.budget:
            raise DataError(
                f"sample {int(self.sizes.argmax())} alone holds {largest}, the budget of a batch is {self.budget}; give a larger budget"
            )

    def num_batches(self, world: int = 1) -> int:
        """Batches of an epoch on each rank."""
        # a piece and half of the largest sample at either end must fit into the budget
        share = max(self.budget - int(self.sizes.max()) + 1, 1)
        return -(-int(self.sizes.sum()) // (share * world))

    def indices(self, epoch: int, index: int, *, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Samples of one batch, all of which count. Where there are fewer samples than pieces a batch may be empty of real ones."""
        order, bounds = _cuts(self, epoch, self.num_batches(world) * world)
        place = index * world + rank
        chosen = order[bounds[place] : bounds[place + 1]]
        # a batch needs a sample to show what its arrays look like
        return (chosen, np.ones(len(chosen), dtype=bool)) if len(chosen) else (order[:1], np.zeros(1, dtype=bool))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of what decides which samples a batch holds."""
        digest = hashlib.sha256(self.sizes.astype("<i8").tobytes())
        digest.update(repr((self.budget, self.seed)).encode())
        return digest.hexdigest()


class Waste(NamedTuple):
    """Shares of graphs, atoms and edges that are padding."""

    graphs: float
    atoms: float
    edges: float


class BucketPlan(NamedTuple):
    """Sizes to pad to, and what padding to them costs."""

    sizes: tuple[Padding, ...]
    waste: Waste
    """Over the batches looked at."""
    uses: tuple[int, ...]
    """How many of those batches take each size."""

    def __str__(self) -> str:
        graphs, atoms, edges = (f"{100 * share:.1f} %" for share in self.waste)
        lines = [
            f"{size.graphs} graphs, {size.atoms} atoms, {size.edges} edges: {uses} batches"
            for size, uses in zip(self.sizes, self.uses, strict=True)
        ]
        return "\n".join([*lines, f"padding: {graphs} of graphs, {atoms} of atoms, {edges} of edges"])


def plan_buckets(
    dataset: Sequence, batches: int | BudgetBatches | EvenBatches, *, num_sizes: int = 6, num_epochs: int = 16, multiple: int = 8
) -> BucketPlan:
    """Choose the few sizes that waste least on the batches that epochs really draw; the last holds any batch there can be.

    The batches are cut into ranges in the order of their edges, and each range has a size. Which ranges waste the least is found
    by dynamic programming over at most 512 places to cut.

    Args:
        dataset: Prepared frames.
        batches: Frames in a batch, or how batches are cut.
        num_sizes: The most sizes, each of which costs one compilation; at least 1.
        num_epochs: Epochs looked at.
        multiple: Atoms and edges are rounded up to multiples of this.
    """
    if num_sizes < 1:
        raise ValueError(f"num_sizes must be at least 1, got {num_sizes}")
    plan = EvenBatches(len(dataset), batches) if isinstance(batches, int) else batches
    _, atoms, edges = np.array([sizes_of([frame]) for frame in dataset], dtype=np.int64).reshape(-1, 3).T
    drawn = np.array(
        [
            (int(real.sum()), atoms[chosen[real]].sum(), edges[chosen[real]].sum())
            for epoch in range(num_epochs)
            for index in range(plan.num_batches())
            for chosen, real in [plan.indices(epoch, index)]
        ]
    )
    drawn += np.array([1, 2, 0])  # the padding graph and its two atoms, which make room for padding edges
    worst = _rounded(_worst(plan, atoms, edges), multiple)
    ordered = drawn[np.argsort(drawn[:, 2], kind="stable")]
    usual = [_rounded(ordered[first:end].max(axis=0), multiple) for first, end in _ranges(ordered, num_sizes - 1)]
    sizes = tuple(Padding(*map(int, size)) for size in dict.fromkeys(map(tuple, [*map(tuple, usual), tuple(worst)])))
    return _judged(sizes, drawn)


def _worst(plan: BudgetBatches | EvenBatches, atoms: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What no batch can exceed, padding graph included."""
    if isinstance(plan, EvenBatches):
        return np.array([plan.batch_size + 1, np.sort(atoms)[-plan.batch_size :].sum() + 2, np.sort(edges)[-plan.batch_size :].sum()])
    # a batch within the budget holds at most budget times the largest ratio of anything to what the budget counts
    counted = plan.sizes > 0
    ratios = [np.where(counted, values / np.maximum(plan.sizes, 1), np.inf).max() for values in (np.ones_like(atoms), atoms, edges)]
    bounds = plan.budget * np.array(ratios)
    return np.ceil(np.minimum(bounds, [len(atoms), atoms.sum(), edges.sum()]) - 1e-6).astype(np.int64) + np.array([1, 2, 0])


def _ranges(ordered: np.ndarray, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges of ordered batches, so that atoms and edges, each over their mean, sum to the least when padded."""
    if count < 1:
        return []
    ends = np.unique(np.linspace(0, len(ordered), min(len(ordered), 512) + 1).astype(np.int64))
    largest = np.maximum.reduceat(ordered[:, 1:], ends[:-1], axis=0) / np.maximum(ordered[:, 1:].mean(axis=0), 1)
    price = np.full((len(ends), len(ends)), np.inf)  # of a range from one end to another: its batches times its largest
    np.fill_diagonal(price, 0.0)
    for first in range(len(ends) - 1):
        size = np.maximum.accumulate(largest[first:], axis=0).sum(axis=1)
        price[first, first + 1 :] = size * (ends[first + 1 :] - ends[first])
    cost, choices = price[0], []
    for _ in range(count - 1):
        table = cost[:, None] + price
        choices.append(table.argmin(axis=0))
        cost = table.min(axis=0)
    bounds, at = [len(ends) - 1], len(ends) - 1
    for choice in reversed(choices):
        at = int(choice[at])
        bounds.append(at)
    bounds = sorted({0, *bounds})
    return [(int(ends[first]), int(ends[end])) for first, end in itertools.pairwise(bounds)]


def _judged(sizes: tuple[Padding, ...], drawn: np.ndarray) -> BucketPlan:
    fits = (drawn[:, None, :] <= np.array(sizes)[None]).all(axis=-1)
    taken = fits.argmax(axis=1)  # the first that fits
    real = drawn.sum(axis=0) - len(drawn) * np.array([1, 2, 0])
    padded = np.array(sizes)[taken].sum(axis=0)
    graphs, atoms, edges = (1 - real / np.maximum(padded, 1)).tolist()
    return BucketPlan(sizes, Waste(graphs, atoms, edges), tuple(np.bincount(taken, minlength=len(sizes)).tolist()))


def _rounded(size: np.ndarray, multiple: int) -> np.ndarray:
    """Atoms and edges up to a multiple, which vector units like."""
    return np.array([size[0], *(-(-size[1:] // multiple) * multiple)])


@functools.lru_cache(maxsize=4)
def _cuts(plan: BudgetBatches, epoch: int, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of an epoch, and where its pieces begin."""
    order = permutation(plan.seed, epoch, len(plan.sizes))
    ends = np.cumsum(plan.sizes[order])
    # twice the middle of a sample against twice the ends of the pieces, in whole numbers
    middles = (2 * ends - plan.sizes[order]) * pieces
    bounds = np.searchsorted(middles, 2 * int(ends[-1]) * np.arange(pieces + 1), side="left")
    bounds[-1] = len(order)
    return order, bounds
