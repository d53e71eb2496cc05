"""Batches of an epoch, starting anywhere: the order from `order.py`, the samples from any sequence."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from .order import Last, batch_indices, num_batches

Collate = Callable[[list[Any], np.ndarray | None], Any]


def stack(samples: list[Mapping[str, Any]], mask: np.ndarray | None = None) -> dict[str, Tensor]:
    """Stack samples, mappings of tensors or arrays with the same keys and shapes, along a new first axis.

    Args:
        mask: False for samples that only fill up. It goes into the batch as `mask` `(batch,)`; None adds nothing.

    Example:
        >>> stack([{"x": torch.ones(2)}, {"x": torch.zeros(2)}])["x"].shape
        torch.Size([2, 2])
    """
    batch = {key: torch.stack([torch.as_tensor(sample[key]) for sample in samples]) for key in samples[0]}
    return batch if mask is None else {**batch, "mask": torch.from_numpy(mask)}


class Loader:
    """Batches as a function of (seed, epoch, index, rank, world); the same ones in every process that asks.

    Args:
        dataset: Anything with `__len__` and `__getitem__(int)`.
        batch_size: Samples of a batch on each rank.
        seed: Chooses the shuffled orders.
        shuffle: Whether each epoch has an order of its own.
        collate: From a list of samples and a mask to a batch. The mask is False for samples that only fill up the last batch; it is
            None unless `last` is "pad".
        rank: Which part of each global batch is ours.
        world: Number of ranks.
        last: What happens to the end of an epoch that fills no whole batch: "pad" fills it with samples of weight 0, "drop" leaves it
            out, "keep" makes a smaller batch (one rank only).
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        collate: Collate = stack,
        rank: int = 0,
        world: int = 1,
        last: Last = "pad",
    ):
        if len(dataset) == 0:
            raise ValueError("the dataset is empty; check the path and the split")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world:
            raise ValueError(f"rank must lie in [0, world), got rank {rank} and world {world}")
        if last not in get_args(Last):
            raise ValueError(f"last must be one of {', '.join(get_args(Last))}, got {last!r}")
        if last == "keep" and world > 1:
            raise ValueError('last="keep" would give ranks unequal batches; use "pad" or "drop"')
        if last == "drop" and len(dataset) < batch_size * world:
            raise ValueError(f'last="drop" leaves nothing: {len(dataset)} samples, {batch_size} x {world} in a global batch')
        self.dataset, self.batch_size, self.seed, self.shuffle = dataset, batch_size, seed, shuffle
        self.collate, self.rank, self.world, self.last = collate, rank, world, last

    def __len__(self) -> int:
        """Batches of one epoch."""
        return num_batches(len(self.dataset), self.batch_size, self.world, self.last)

    def indices(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Which samples batch `index` of an epoch holds, and a mask that is False for those that only fill up."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of an epoch with {len(self)} batches")
        chosen, real = batch_indices(
            self.seed, epoch, index, self.batch_size, len(self.dataset), rank=self.rank, world=self.world, shuffle=self.shuffle
        )
        return (chosen[real], real[real]) if self.last == "keep" else (chosen, real)

    def batch(self, epoch: int, index: int) -> Any:
        """One batch of an epoch; no other sample is read."""
        chosen, real = self.indices(epoch, index)
        samples = [self.dataset[sample] for sample in chosen.tolist()]
        return self.collate(samples, real if self.last == "pad" else None)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from number `start` on."""
        return (self.batch(epoch, index) for index in range(start, len(self)))

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides which samples a batch of the whole world holds: the data, the order, the sizes.

        Two runs with the same fingerprint see the same samples, also if the world is cut into other ranks of the same global batch.
        """
        data = getattr(self.dataset, "fingerprint", f"{type(self.dataset).__qualname__} of {len(self.dataset)}")
        parts = (data, len(self.dataset), self.batch_size * self.world, self.seed, self.shuffle, self.last)
        return hashlib.sha256(repr(parts).encode()).hexdigest()
