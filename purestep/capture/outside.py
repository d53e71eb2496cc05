"""Tensors that a step closes over, as its recording meets them: none may be written to."""

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, has_proxy_slot

from ..errors import CaptureError
from .lines import user_line

aten = torch.ops.aten
_WRITE_UNTOLD = {aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default}
"""Operations that write into running statistics without a word in their schema."""


class Outside:
    """The memory of tensors from outside."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}  # kept, so that no other gets its address

    def check_writes(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Refuse a write before it happens: a graph would do it at each call, and has done it while it was recorded.

        Raises:
            CaptureError: Naming the line.
        """
        mode = get_proxy_mode()
        if mode is not None and func is not aten.lift_fresh.default:  # which brings in what `torch.tensor` has just made
            self._memory |= _memory([x for x in _tensors([*args, *kwargs.values()]) if not has_proxy_slot(x, mode.tracer)])
        given = [(argument, kwargs.get(argument.name, x)) for argument, x in zip_longest(func._schema.arguments, args)]
        if self._holds([x for argument, x in given if argument.is_write or func in _WRITE_UNTOLD]):
            raise CaptureError(
                f"the step writes into a tensor that it closes over, at {user_line()}; a step changes nothing outside: keep what moves in "
                "the state, as a buffer of a module or as the state of a hook, or write into a clone"
            )

    def note_view(self, func: Any, args: tuple, result: Any) -> None:
        """Know a view of what is outside: one without data has memory of another name."""
        if func.is_view and self._holds(args[:1]):
            self._memory |= _memory((result,))

    def _holds(self, given: Sequence[Any]) -> bool:
        return not self._memory.keys().isdisjoint(_memory(given))


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    """Dense tensors among arguments, and in lists of them."""
    flat = chain.from_iterable(x if isinstance(x, list | tuple) else (x,) for x in args)
    return [x for x in flat if isinstance(x, Tensor) and x.layout is torch.strided]


def _memory(args: Sequence[Any]) -> dict[int, Any]:
    storages = [x.untyped_storage() for x in _tensors(args)]
    return {storage._cdata: storage for storage in storages}
