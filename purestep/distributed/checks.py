"""Are all ranks still doing the same? Comparing states by hashes, and the order of collectives."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.event import Event, crossed
from ..core.hook import Stage
from ..core.ranks import Ranks, known_to_all
from ..errors import DistributedError
from .collective import watched
from .local import is_alike
from .topology import Topology


def check_same_state(state: Any, topology: Topology, *, where: str = "state") -> None:
    """Compare a state over ranks, bit for bit; what each rank has of its own (open windows, parts of sharded state) is left out.

    Every rank calls this. Costs a sum of 8 bytes for each leaf.

    Raises:
        DistributedError: On every rank, naming the first leaf that differs from rank 0, and the ranks.
    """
    compare_states(state, topology.ranks, where)


def compare_states(state: Any, ranks: Ranks, where: str) -> None:
    """`check_same_state`, for those who know the ranks only."""
    if ranks.world_size == 1:
        return
    alike = is_alike(state)
    items = [(path, leaf) for path, leaf in tree.items(state) if alike(path)]
    compare_texts("\n".join(f"{path} {_kind(leaf)}" for path, leaf in items), ranks, where)
    hashes = torch.tensor([hash_of(leaf) for _, leaf in items], dtype=torch.int64)
    different = hashes != ranks.sum(hashes if ranks.rank == 0 else torch.zeros_like(hashes))
    votes = ranks.sum(different.to(torch.int64))
    if bool(votes.any()):
        first = int(votes.nonzero()[0])
        who = ranks.sum(torch.tensor([int(different[first]) if rank == ranks.rank else 0 for rank in range(ranks.world_size)]))
        others = ", ".join(str(rank) for rank, differs in enumerate(who.tolist()) if differs)
        message = (
            f"{where}: {items[first][0]} differs between rank 0 and rank {others} ({int((votes > 0).sum())} leaves differ in all); the "
            "ranks do not train one model. At the start: give all ranks one seed, and call torch.manual_seed before building the "
            "model, or load the same weights. Later: restart from the newest checkpoint, and look for a rank whose data or hardware "
            "gives other numbers"
        )
        raise known_to_all(DistributedError(message))


def check_same_text(text: str, topology: Topology, *, where: str) -> None:
    """Compare a text, such as a spec with one field a line, over ranks; every rank calls this.

    Raises:
        DistributedError: On every rank, with the lines that differ from rank 0.
    """
    compare_texts(text, topology.ranks, where)


def compare_texts(own: str, ranks: Ranks, where: str) -> None:
    """`check_same_text`, for those who know the ranks only."""
    reference = ranks.tell(own)
    error = None
    if own != reference:
        mine, theirs = set(own.splitlines()), set(reference.splitlines())
        error = DistributedError(
            f"{where}: rank {ranks.rank} has {sorted(mine - theirs)[:3]}, rank 0 has {sorted(theirs - mine)[:3]} in their place; start all "
            "ranks with the same model, optimizer, hooks and settings"
        )
    ranks.settle(error=error)


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)


def hash_of(leaf: Any) -> int:
    """Hash of a leaf's bits, as int64."""
    data = (
        leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if isinstance(leaf, Tensor)
        else repr(leaf).encode()
    )
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


class SameState:
    """Listener that compares the state over ranks every so many batches, and ends the run on all ranks if it differs.

    Args:
        topology: From `init`.
        every: Batches between two comparisons; at least 1.
    """

    on_every_rank = True

    def __init__(self, topology: Topology, *, every: int = 100):
        if every < 1:
            raise ValueError(f"SameState: every must be at least 1, got {every}")
        self.topology, self.every = topology, every

    def __call__(self, event: Event) -> None:
        """Compare at the start, and after a batch if it is time."""
        due = event.stage is Stage.AFTER_BATCH and crossed(self.every, event.batch_count - 1, event.batch_count)
        if self.topology.world_size > 1 and (due or event.stage is Stage.SETUP):
            check_same_state(event.state, self.topology, where=f"batch {event.batch_count}")


@contextlib.contextmanager
def collective_order_checked(topology: Topology) -> Iterator[None]:
    """While it is open, ranks compare before each sum what they are about to add: its number and its shape.

    A debugging mode, which doubles the collectives: ranks that have come apart get an error that names both, not a hang or wrong sums.

    Raises:
        DistributedError: At the first sum in which the ranks differ.
    """
    count = 0

    def compare(operation: str, x: Tensor) -> None:
        nonlocal count
        count += 1
        texts = exchange_texts(f"{operation} number {count} of {list(x.shape)} {x.dtype}", topology)
        if len(set(texts)) > 1:
            listed = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))
            raise DistributedError(f"the ranks are about to do different things, which would hang: {listed}")

    if topology.world_size == 1:
        yield
        return
    with watched(compare):
        yield


_LONGEST = 256


def exchange_texts(own: str, topology: Topology) -> list[str]:
    """Short texts of all ranks, by rank; always the same collective, whatever the texts."""
    letters = own.encode()[:_LONGEST].ljust(_LONGEST)
    table = torch.zeros(topology.world_size, _LONGEST, dtype=torch.int32)
    table[topology.rank] = torch.tensor(list(letters), dtype=torch.int32)
    torch.distributed.all_reduce(table)
    return [bytes(row).decode(errors="replace").rstrip() for row in table.tolist()]
