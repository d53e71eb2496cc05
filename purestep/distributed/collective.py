"""The one operation through which ranks talk inside a step: a sum, as an operator of the graph.

It is a function (its input stays as it is), so `make_fx`, Dynamo and inductor treat it like any other. While a step is being recorded
it does not communicate: one rank may need another recording, for a batch of another size, when the others do not.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ..core.ranks import known_to_all
from ..errors import DistributedError

_library = torch.library.Library("purestep", "DEF")
_library.define("sum_over_ranks(Tensor x, int world_size) -> Tensor")


@dataclasses.dataclass
class _Process:
    """Facts about this process, outside of every state."""

    recording: bool = False
    watchers: tuple[Callable[[str, Tensor], None], ...] = ()


_process = _Process()


def sum_over(x: Tensor, *, world_size: int) -> Tensor:
    """Sum of a tensor over all ranks; on every rank the same bits, and the same again for the same inputs.

    Raises:
        DistributedError: If another rank is gone or does not come.
    """
    if not torch.compiler.is_dynamo_compiling() and get_proxy_mode() is not None:
        with _recording():
            return torch.ops.purestep.sum_over_ranks(x, world_size)
    return torch.ops.purestep.sum_over_ranks(x, world_size)


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


def _communicate(x: Tensor, world_size: int) -> Tensor:
    if _process.recording:
        return x.clone()
    for watcher in _process.watchers:
        watcher("sum", x)
    if not dist.is_initialized() or dist.get_world_size() != world_size:
        raise DistributedError(f"sum over {world_size} ranks: this process has joined no such group; call purestep.distributed.init first")
    total = x.contiguous().clone()
    run_collective(lambda: dist.all_reduce(total), f"sum of {tuple(x.shape)} {x.dtype}")
    return total


def run_collective(operation: Callable[[], object], what: str) -> None:
    """Run a collective, with an error of ours if another rank is gone.

    Raises:
        DistributedError: Saying which rank stood where.
    """
    try:
        operation()
    except RuntimeError as error:
        cause = str(error).splitlines()[0][:300]
        raise known_to_all(
            DistributedError(
                f"rank {dist.get_rank()} of {dist.get_world_size()} waited in vain for another rank in a {what}: it has ended, hangs, or "
                f"is doing something else; look at the logs of the other ranks ({cause})"
            )
        ) from error


def _same_shape(x: Tensor, world_size: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_library.impl("sum_over_ranks", _communicate, "CompositeExplicitAutograd")
torch.library.register_fake("purestep::sum_over_ranks", _same_shape, lib=_library)
