"""Batches of an epoch, starting anywhere: the order from `order.py`, the samples from any sequence."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .order import BatchPlan, EvenBatches, Last, Samples

Collate = Callable[[list[Any], np.ndarray | None], Any]


def stack(samples: list[Mapping[str, Any]], mask: np.ndarray | None = None) -> dict[str, Tensor]:
    """Stack samples, mappings of tensors or arrays with the same keys and shapes, along a new first axis.

    Args:
        mask: False for samples that only fill up. It goes into the batch as `mask` `(batch,)`; None adds nothing.

    Example:
        >>> stack([{"x": torch.ones(2)}, {"x": torch.zeros(2)}])["x"].shape
        torch.Size([2, 2])
    """
    batch = {key: torch.stack([_tensor(sample[key]) for sample in samples]) for key in samples[0]}
    return batch if mask is None else {**batch, "mask": torch.from_numpy(mask)}


def _tensor(value: Any) -> Tensor:
    # arrays of a store are views that cannot be written, which tensors cannot express
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else torch.as_tensor(value)


class Loader:
    """Batches as a function of (seed, epoch, index, rank, world); the same ones in every process that asks.

    Args:
        dataset: Anything with `__len__` and `__getitem__(int)`.
        batch_size: Samples of a batch on each rank. Or a plan that says which samples a batch holds (`BudgetBatches`, `MixedBatches`);
            it has a seed and an order of its own, so `seed`, `shuffle` and `last` are not for it.
        seed: Chooses the shuffled orders.
        shuffle: Whether each epoch has an order of its own.
        collate: From a list of samples and a mask to a batch. The mask is False for samples that only fill up the batch; it is None
            where a plain batch size comes with another `last` than "pad".
        rank: Which part of each global batch is ours.
        world: Number of ranks.
        last: What happens to the end of an epoch that fills no whole batch: "pad" fills it with samples of weight 0 (which the losses and
            metrics of purestep leave out; a loss function of your own reads `batch["mask"]`), "drop" leaves it out, "keep" makes a
            smaller batch (one rank only).
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int | BatchPlan,
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
        if not 0 <= rank < world:
            raise ValueError(f"rank must lie in [0, world), got rank {rank} and world {world}")
        if isinstance(batch_size, int):
            _check_even(len(dataset), batch_size, world, last)
            self.plan: BatchPlan = EvenBatches(len(dataset), batch_size, seed, shuffle, last)
        elif (seed, shuffle, last) != (0, True, "pad"):
            raise ValueError("a plan of batches has its own seed and order; seed, shuffle and last are for a plain batch_size")
        else:
            self.plan = batch_size
        self.dataset, self.batch_size, self.seed, self.shuffle = dataset, batch_size, seed, shuffle
        self.collate, self.rank, self.world, self.last = collate, rank, world, last

    def __len__(self) -> int:
        """Batches of one epoch."""
        return self.plan.num_batches(self.world)

    @property
    def fills_up(self) -> bool:
        """Whether the last batches of an epoch hold samples that only fill up."""
        plan = self.plan
        return isinstance(plan, EvenBatches) and plan.last == "pad" and len(self.dataset) % (plan.batch_size * self.world) != 0

    def indices(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Which samples batch `index` of an epoch holds, and a mask that is False for those that only fill up."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of an epoch with {len(self)} batches")
        return self.plan.indices(epoch, index, rank=self.rank, world=self.world)

    def batch(self, epoch: int, index: int) -> Any:
        """One batch of an epoch; no other sample is read.

        Raises:
            DataError: If a sample cannot be read, or the samples do not make a batch; the message says which.
        """
        chosen, real = self.indices(epoch, index)
        samples = [self._sample(sample, epoch, index) for sample in chosen.tolist()]
        plain = isinstance(self.plan, EvenBatches) and self.plan.last != "pad"
        try:
            return self.collate(samples, None if plain else real)
        except Exception as error:
            advice = "; for samples of unlike shapes give a collate=fn(samples, mask) that pads" if self.collate is stack else ""
            where = f"batch {index} of epoch {epoch}, samples {_some(chosen)}"
            raise DataError(f"{where}, cannot be collated: {_text(error)}{advice}") from error

    def _sample(self, sample: int, epoch: int, index: int) -> Any:
        try:
            return self.dataset[sample]
        except Exception as error:
            raise DataError(f"sample {sample}, for batch {index} of epoch {epoch}, cannot be read: {_text(error)}") from error

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from number `start` on."""
        return (self.batch(epoch, index) for index in range(start, len(self)))

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides which samples a batch of the whole world holds: the data, the order, the sizes.

        Two runs with the same fingerprint see the same samples; where a plain batch size says how batches are cut, also if the world
        is cut into other ranks of the same global batch.
        """
        data = getattr(self.dataset, "fingerprint", f"{type(self.dataset).__qualname__} of {len(self.dataset)}")
        if isinstance(plan := self.plan, EvenBatches):
            order: tuple[Any, ...] = (plan.batch_size * self.world, plan.seed, plan.shuffle, plan.last)
        else:
            order = (plan.fingerprint, self.world)
        return hashlib.sha256(repr((data, len(self.dataset), *order)).encode()).hexdigest()


def _check_even(size: int, batch_size: int, world: int, last: Last) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if last not in get_args(Last):
        raise ValueError(f"last must be one of {', '.join(get_args(Last))}, got {last!r}")
    if last == "keep" and world > 1:
        raise ValueError('last="keep" would give ranks unequal batches; use "pad" or "drop"')
    if last == "drop" and size < batch_size * world:
        raise ValueError(f'last="drop" leaves nothing: {size} samples, {batch_size} x {world} in a global batch')


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"


def _some(numbers: np.ndarray) -> str:
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return f"{shown}, ..." if len(numbers) > 8 else shown
