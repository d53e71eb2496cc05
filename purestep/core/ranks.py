"""What a step knows of the other processes that train the same model: who it is, and how to add over all.

A process that is alone adds nothing. The functions that talk to other processes are given from outside (`distributed/`); inside the step
they are operations of the graph like any other.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor


def _alone(vector: Tensor) -> Tensor:
    return vector


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The place of this process among those that share a batch."""

    rank: int = 0
    world_size: int = 1
    sum: Callable[[Tensor], Tensor] = _alone
    """Sum of a 1-d tensor over all ranks, in an order that is the same each time; the same bits on every rank."""

    def agree(self, apply: Tensor, reject: Tensor) -> tuple[Tensor, Tensor]:
        """One verdict for all ranks: apply if all would, reject if any would. 0-d bools."""
        votes = self.sum(torch.stack([~apply, reject]).to(torch.int64))
        return votes[0] == 0, votes[1] > 0


ALONE = Ranks()
