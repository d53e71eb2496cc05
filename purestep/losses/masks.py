"""Which elements count: masks that the batch holds, under a name of the user's choice, and for samples that only fill up a batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.loss import lookup, sample_mask
from ..errors import LossError
from .pairing import expand_mask


def read_mask(name: str, batch: Any, key: str | None, like: Tensor) -> Tensor | None:
    """Where elements of `like` count by the batch: inside the mask called `key`, and in samples that do not only fill up.

    Returns:
        Of the shape of `like`, or of its first axes; None if all count.

    Raises:
        LossError: If there is no such mask, or it is not a bool tensor over the first axes.
    """
    samples = sample_mask(batch, like.shape[0]) if like.ndim else None
    if key is None:
        return samples
    own = check_mask(name, key, lookup(batch, key, name, "mask"), like.shape)
    return own if samples is None or samples is own else own & expand_mask(samples, own)


def check_mask(name: str, key: str, mask: Any, shape: Sequence[int]) -> Tensor:
    """Insist on a bool tensor over the first axes of `shape`.

    Raises:
        LossError: If it is something else; nothing is broadcast.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise LossError(
            f"{name}: mask {key!r} must be a bool tensor, True where an element counts, got {what}; convert it, `mask != 0` for instance"
        )
    if not mask.ndim or tuple(mask.shape) != tuple(shape[: mask.ndim]):
        raise LossError(f"{name}: mask {key!r} {tuple(mask.shape)} must be {tuple(shape)} or its first axes; nothing is broadcast")
    return mask
