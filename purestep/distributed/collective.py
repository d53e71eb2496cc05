"""The operations through which ranks talk inside a step, sums and a gathering, as operators of the graph.

They are functions (the input stays as it is), so `make_fx`, Dynamo and inductor treat them like any other; the sum of a vector that was
made for it alone, as large as the model, is written in its place. While a step is being
recorded they do not communicate: one rank may need another recording, for a batch of another size, when the others do not.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ..core.ranks import known_to_all
from ..errors import DistributedError

_library = torch.library.Library("purestep", "DEF")
_library.define("sum_over_ranks(Tensor x, int world_size) -> Tensor")
_library.define("sum_in_place(Tensor(a!) x, int world_size) -> ()")
_library.define("gather_over_ranks(Tensor x, int world_size) -> Tensor")
_library.define("scatter_sum_over_ranks(Tensor x, int world_size) -> Tensor")


@dataclasses.dataclass
class _Process:
    """Facts about this process, outside of every state."""

    recording: bool = False
    store: dist.Store | None = None  # through which ranks find out who is still there
    watchers: tuple[Callable[[str, Tensor], None], ...] = ()


_process = _Process()


def sum_over(x: Tensor, *, world_size: int) -> Tensor:
    """Sum of a tensor over all ranks; on every rank the same bits, and the same again for the same inputs.

    Raises:
        DistributedError: If another rank is gone or does not come.
    """
    return _call(torch.ops.purestep.sum_over_ranks, x, world_size)


def sum_in_place(x: Tensor, *, world_size: int) -> Tensor:
    """The same, written into a contiguous tensor that nobody else uses.

    Raises:
        DistributedError: If another rank is gone or does not come.
    """
    _call(torch.ops.purestep.sum_in_place, x, world_size)
    return x


def gather_over(x: Tensor, *, world_size: int) -> Tensor:
    """The tensors of all ranks, of one shape, along a new first axis.

    Raises:
        DistributedError: If another rank is gone or does not come.
    """
    return _call(torch.ops.purestep.gather_over_ranks, x, world_size)


def scatter_sum_over(x: Tensor, *, world_size: int) -> Tensor:
    """Sum over all ranks of the row that bears this rank's number; each rank gets the sum of its own row.

    Raises:
        DistributedError: If another rank is gone or does not come.
    """
    return _call(torch.ops.purestep.scatter_sum_over_ranks, x, world_size)


def _call(operation: Callable[[Tensor, int], Any], x: Tensor, world_size: int) -> Any:
    if not torch.compiler.is_dynamo_compiling() and get_proxy_mode() is not None:
        with _recording():
            return operation(x, world_size)
    return operation(x, world_size)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    _process.recording = True
    try:
        yield
    finally:
        _process.recording = False


@contextlib.contextmanager
def watched(watcher: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `watcher(operation, tensor)` before each collective of this process."""
    before = _process.watchers
    _process.watchers = (*before, watcher)
    try:
        yield
    finally:
        _process.watchers = before


def _sum(x: Tensor, world_size: int) -> Tensor:
    if _process.recording:
        return x.clone()
    total = x.clone(memory_format=torch.contiguous_format)
    _sum_in_place(total, world_size)
    return total


def _sum_in_place(x: Tensor, world_size: int) -> None:
    if not _process.recording:
        _begin("sum", x, world_size)
        run_collective(lambda: dist.all_reduce(x), f"sum of {tuple(x.shape)} {x.dtype}")


def _gather(x: Tensor, world_size: int) -> Tensor:
    out = x.new_zeros(world_size, *x.shape)
    if not _process.recording:
        _begin("gather", x, world_size)
        run_collective(lambda: dist.all_gather(list(out.unbind()), x.contiguous()), f"gather of {tuple(x.shape)} {x.dtype}")
    return out


def _scatter_sum(x: Tensor, world_size: int) -> Tensor:
    if _process.recording:
        return x[0].clone()
    _begin("scatter", x, world_size)
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    # an exchange and one addition: gloo's own operation sums everything on every rank, and costs more than twice as much
    run_collective(lambda: dist.all_to_all_single(received, sent), f"scattered sum of {tuple(x.shape)} {x.dtype}")
    return received.sum(0)


def _begin(operation: str, x: Tensor, world_size: int) -> None:
    for watcher in _process.watchers:
        watcher(operation, x)
    if not dist.is_initialized() or dist.get_world_size() != world_size:
        raise DistributedError(
            f"{operation} over {world_size} ranks: this process has joined no such group; call purestep.distributed.init first"
        )


def run_collective(operation: Callable[[], object], what: str) -> None:
    """Run a collective, with an error of ours if another rank is gone.

    Raises:
        DistributedError: Saying which rank stood where.
    """
    try:
        operation()
    except RuntimeError as error:
        cause = str(error).splitlines()[0].split(". ")[0][:200]
        missing = _silent_ranks()
        who = f"no word from rank {', '.join(map(str, missing))}, which" if missing else "it"
        told = DistributedError(
            f"rank {dist.get_rank()} of {dist.get_world_size()} waited in vain for another rank in a {what}: {who} has ended, hangs, or is "
            f"doing something else; look at the logs of the other ranks ({cause})"
        )
        told.no_word_from = missing  # type: ignore[attr-defined]
        raise known_to_all(told) from error


def use_store(store: dist.Store) -> None:
    """Remember where ranks can say that they are there, when collectives have failed."""
    _process.store = store


_GRACE_SECONDS = 2.0


def _silent_ranks() -> tuple[int, ...]:
    """The ranks that do not say, within a short time, that a collective has failed for them too; none if nobody can be asked."""
    store, own, world_size = _process.store, dist.get_rank(), dist.get_world_size()
    if store is None:
        return ()
    missing = tuple(rank for rank in range(world_size) if rank != own)
    deadline = time.monotonic() + _GRACE_SECONDS
    try:
        store.set(f"failed {own}", "yes")
        while missing and time.monotonic() < deadline:
            time.sleep(0.05)
            missing = tuple(rank for rank in missing if not store.check([f"failed {rank}"]))
    except RuntimeError:  # the store went with the process that kept it
        return (0,) if own else missing
    return missing


def _shape_of_sum(x: Tensor, world_size: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _shape_of_gather(x: Tensor, world_size: int) -> Tensor:
    return x.new_empty(world_size, *x.shape)


def _shape_of_scatter_sum(x: Tensor, world_size: int) -> Tensor:
    return x.new_empty(x.shape[1:])


_library.impl("sum_over_ranks", _sum, "CompositeExplicitAutograd")
_library.impl("sum_in_place", _sum_in_place, "CompositeExplicitAutograd")
_library.impl("gather_over_ranks", _gather, "CompositeExplicitAutograd")
_library.impl("scatter_sum_over_ranks", _scatter_sum, "CompositeExplicitAutograd")
torch.library.register_fake("purestep::sum_over_ranks", _shape_of_sum, lib=_library)
torch.library.register_fake("purestep::sum_in_place", lambda x, world_size: None, lib=_library)
torch.library.register_fake("purestep::gather_over_ranks", _shape_of_gather, lib=_library)
torch.library.register_fake("purestep::scatter_sum_over_ranks", _shape_of_scatter_sum, lib=_library)
