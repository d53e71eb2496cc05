"""Fixed sizes for batches, so that one shape, or a few, serve a whole run."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .frames import Frame, PreparedFrames
from .order import permutation


class Padding(NamedTuple):
    """Fixed sizes of a batch: real ones and padding together."""

    graphs: int
    atoms: int
    edges: int


def sizes_of(frames: Sequence[Frame]) -> Padding:
    """What prepared frames need, without padding."""
    return Padding(len(frames), sum(len(frame["numbers"]) for frame in frames), sum(frame["edge_index"].shape[1] for frame in frames))


def plan_padding(dataset: PreparedFrames, batch_size: int, *, num_sizes: int = 2, num_epochs: int = 32) -> tuple[Padding, ...]:
    """Sizes that hold every batch of `batch_size` frames of a prepared data set, smallest first.

    The last size holds the `batch_size` largest frames, so nothing can overflow. The others hold what shuffled epochs really draw:
    with two sizes practically all batches take the first, which is much smaller. Each size costs one compilation.

    Args:
        dataset: Prepared frames.
        num_sizes: Number of sizes, at least 1.
        num_epochs: Epochs looked at to find the usual sizes.
    """
    _, atoms, edges = np.array([sizes_of([frame]) for frame in dataset]).T
    graphs = batch_size + 1
    worst = [int(np.sort(counts)[-batch_size:].sum()) for counts in (atoms, edges)]
    usual: list[Padding] = []
    if num_sizes > 1 and len(dataset) > batch_size:
        whole = len(dataset) - len(dataset) % batch_size
        drawn = np.concatenate([permutation(0, epoch, len(dataset))[:whole].reshape(-1, batch_size) for epoch in range(num_epochs)])
        quantiles = np.linspace(0, 1, num_sizes)[1:]
        sizes = [np.quantile(counts[drawn].sum(axis=1), quantiles, method="higher") for counts in (atoms, edges)]
        usual = [Padding(graphs, _rounded(a + 2), _rounded(e)) for a, e in zip(*sizes, strict=True)]
    return tuple(dict.fromkeys([*usual, Padding(graphs, _rounded(worst[0] + 2), _rounded(worst[1]))]))


def _rounded(count: int) -> int:
    """Up to a multiple of 8, which vector units like."""
    return -(-int(count) // 8) * 8
