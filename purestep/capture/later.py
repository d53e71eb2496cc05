"""Activation checkpointing in a recorded graph: a region is computed again where the backward needs it, and not before.

In a graph the two computations of a region are equal operations on equal values. A compiler would do them once and keep the results, which
is what checkpointing is there to avoid. So each tensor that a region takes from outside is tied, at its recomputation, to the last value
recorded before: an operation that returns the tensor bit for bit, but needs that value first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.recompute import Recomputable


def recomputed_later(latest: Callable[[], Tensor | None], arguments: Sequence[Tensor]) -> Recomputable:
    """A context in which regions are recomputed after what has been recorded by then.

    Args:
        latest: The value that was recorded last.
        arguments: Of the step; parameters among them, which stay where they are all the time, are taken as they are.
    """
    memory = {x.untyped_storage()._cdata for x in arguments}
    return Recomputable(lambda: lambda: _Later(latest(), memory))


class _Later(TorchFunctionMode):
    """Ties what the functions called in it take from outside."""

    def __init__(self, latest: Tensor | None, memory: set[int]) -> None:
        super().__init__()
        self.memory = memory
        self.always = None if latest is None else _true_after(latest)
        # by the identity of a tensor, with the tensor, so that no other gets its identity
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._tied, (args, kwargs or {}))
        result = func(*args, **kwargs)
        self.found.update({id(x): (x, x) for x in tree_leaves(result) if isinstance(x, Tensor)})
        return result

    def _tied(self, x: Tensor) -> Tensor:
        if id(x) not in self.found:
            self.found[id(x)] = (x, x if self.always is None or self._stays(x) else _after(self.always, x))
        return self.found[id(x)][1]

    def _stays(self, x: Tensor) -> bool:
        is_plain = x.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        return not is_plain or (x.requires_grad and x.is_leaf and x.untyped_storage()._cdata in self.memory)


def _true_after(x: Tensor) -> Tensor:
    """True, but no compiler can know it before it has the first number of `x`."""
    first = x.detach()[(0,) * x.ndim]
    return (first == first) | (first != first)


def _after(always: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():  # nothing is saved for it, else the region would save other tensors than in the forward
        return torch.where(always, x, x.new_zeros(())).requires_grad_(x.requires_grad)
