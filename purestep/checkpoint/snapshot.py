"""Copies of a state that later steps cannot touch: preallocated host buffers, one set, filled in one go."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .layout import Placed


def buffers_for(placed: Sequence[Placed], old: Sequence[Tensor | None] = ()) -> list[Tensor | None]:
    """Host memory for each tensor, pinned where the tensor is on a CUDA device; buffers that still fit are used again.

    New memory is touched, so that the first copy into it does not pay for the page faults.
    """
    usable = list(old) if len(old) == len(placed) else [None] * len(placed)
    return [_buffer(item.leaf, buffer) if isinstance(item.leaf, Tensor) else None for item, buffer in zip(placed, usable, strict=True)]


def _buffer(leaf: Tensor, old: Tensor | None) -> Tensor:
    pinned = leaf.device.type == "cuda"
    if old is not None and (old.shape, old.dtype, old.is_pinned() if pinned else False) == (leaf.shape, leaf.dtype, pinned):
        return old
    buffer = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=pinned)
    buffer.reshape(-1).view(torch.uint8).zero_()
    return buffer


def copy_into(buffers: Sequence[Tensor | None], placed: Sequence[Placed]) -> list[Placed]:
    """Copy every tensor into its buffer, and give the leaves as they are at this moment.

    Tensors on the host are copied too: a compiled step that reuses the memory of its input would change them under the writer.
    """
    devices = set()
    copied = []
    for item, buffer in zip(placed, buffers, strict=True):
        if buffer is not None:
            buffer.copy_(item.leaf.detach(), non_blocking=True)
            devices.add(item.leaf.device)
            item = item._replace(leaf=buffer)
        copied.append(item)
    for device in devices:
        if device.type == "cuda":  # copies to pinned memory return before they are done
            torch.cuda.current_stream(device).synchronize()
    return copied
