"""What a step knows of the other processes that train the same model: who it is, and how to add over all.

A process that is alone adds nothing. The functions that talk to other processes are given from outside (`distributed/`); inside the step
they are operations of the graph like any other.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import DistributedError
from . import tree

Result = TypeVar("Result")


_KNOWN = "known_to_all"


def known_to_all(error: Exception) -> Exception:
    """The same error, marked as one that every rank has heard of, or none can: nobody tells the others again."""
    setattr(error, _KNOWN, True)
    return error


def _alone(vector: Tensor) -> Tensor:
    return vector


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The place of this process among those that share a batch."""

    rank: int = 0
    world_size: int = 1
    sum: Callable[[Tensor], Tensor] = _alone
    """Sum of a 1-d tensor over all ranks, in an order that is the same each time; the same bits on every rank."""
    sum_in_place: Callable[[Tensor], Tensor] | None = None
    """The same, in the memory of a tensor that nobody else uses; None: there is no such way."""

    def sum_tree(self, values: tree.Tree) -> tree.Tree:
        """Sum of every leaf over all ranks.

        Leaves of one dtype travel as one flat vector, those narrower than float32 as float32.
        """
        if self.world_size == 1:
            return values
        leaves, structure = tree.flatten(values)
        real = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in leaves]
        buckets: dict[torch.dtype, list[int]] = {}
        for i, leaf in enumerate(real):
            buckets.setdefault(torch.promote_types(leaf.dtype, torch.float32), []).append(i)
        summed = list(leaves)
        for dtype, members in buckets.items():
            total = (self.sum_in_place or self.sum)(torch.cat([real[i].reshape(-1).to(dtype) for i in members]))
            for i, part in zip(members, total.split([real[i].numel() for i in members]), strict=True):
                shaped = part.view(real[i].shape).to(real[i].dtype)
                summed[i] = torch.view_as_complex(shaped) if leaves[i].is_complex() else shaped
        return tree.unflatten(structure, summed)

    def agree(self, apply: Tensor, reject: Tensor) -> tuple[Tensor, Tensor]:
        """One verdict for all ranks: apply if all would, reject if any would. 0-d bools."""
        votes = self.sum(torch.stack([~apply, reject]).to(torch.int64))
        return votes[0] == 0, votes[1] > 0

    def settle(self, wish: str | None = None, error: Exception | None = None) -> str | None:
        """Agree between batches, on the host: every rank calls this, with what it wants and what went wrong on it.

        Returns:
            The wish of the lowest rank that has one.

        Raises:
            DistributedError: If another rank has an error; a rank raises its own.
        """
        if error is not None and (self.world_size == 1 or hasattr(error, _KNOWN)):
            raise error
        if self.world_size == 1:
            return wish
        own = 2 if error is not None else 1 if wish is not None else 0
        votes: list[int] = self.sum(torch.tensor([own if rank == self.rank else 0 for rank in range(self.world_size)])).tolist()
        if not any(votes):
            return None
        speaker = votes.index(max(votes))
        said = self.tell(wish or "" if error is None else f"{type(error).__name__}: {error}", speaker)
        if error is not None:
            raise known_to_all(error)
        if max(votes) == 2:
            raise known_to_all(DistributedError(f"rank {speaker} failed, so rank {self.rank} stops too: {said}"))
        return said

    def together(self, action: Callable[[], Result]) -> Result:
        """Run `action`, on the host; if it fails on one rank, no rank goes on.

        Raises:
            DistributedError: If it failed on another rank; a rank raises its own error.
        """
        try:
            result = action()
        except Exception as error:
            self.settle(error=error)
            raise
        self.settle()
        return result

    def tell(self, text: str, speaker: int = 0) -> str:
        """The text of one rank, on every rank; on the host."""
        if self.world_size == 1:
            return text
        own = list(text.encode()) if self.rank == speaker else []
        size = int(self.sum(torch.tensor([len(own)]))[0])
        letters = self.sum(torch.tensor(own or [0] * size, dtype=torch.int64)) if size else torch.zeros(0)
        return bytes(int(letter) for letter in letters.tolist()).decode()


ALONE = Ranks()
