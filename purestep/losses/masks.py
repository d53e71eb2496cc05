"""A mask that the batch holds under a name of the user's choice."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import LossError


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
