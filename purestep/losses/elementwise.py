"""Functions of the error of each element, under optax's names: nothing is reduced, the caller does that.

Without targets the predictions are the errors themselves.
"""

import math

import torch
from torch import Tensor

from ..errors import LossError


def errors_of(name: str, predictions: Tensor, targets: Tensor | None) -> Tensor:
    """`predictions - targets`, of one shape.

    Raises:
        LossError: If the shapes differ; nothing is broadcast.
    """
    if targets is None:
        return predictions
    check_shapes(name, predictions, targets)
    return predictions - targets


def check_shapes(name: str, one: Tensor, other: Tensor) -> None:
    """Raise unless both have one shape."""
    if one.shape != other.shape:
        raise LossError(f"{name} needs equal shapes, got {tuple(one.shape)} and {tuple(other.shape)}; nothing is broadcast")


def squared_error(predictions: Tensor, targets: Tensor | None = None) -> Tensor:
    """`(p - t)^2`, element by element.

    Raises:
        LossError: If the shapes differ.
    """
    return errors_of("squared_error", predictions, targets).square()


def l2_loss(predictions: Tensor, targets: Tensor | None = None) -> Tensor:
    """`(p - t)^2 / 2`, element by element: half of what `torch.nn.functional.mse_loss` averages.

    Raises:
        LossError: If the shapes differ.
    """
    return 0.5 * errors_of("l2_loss", predictions, targets).square()


def huber_loss(predictions: Tensor, targets: Tensor | None = None, *, delta: float = 1.0) -> Tensor:
    """`r^2 / 2` for `|r| <= delta`, `delta (|r| - delta / 2)` beyond, element by element, with `r = p - t`.

    Args:
        delta: Where the square ends, in the units of the predictions.

    Raises:
        LossError: If the shapes differ.

    Example:
        >>> huber_loss(torch.tensor([0.5, 3.0]))
        tensor([0.1250, 2.5000])
    """
    size = errors_of("huber_loss", predictions, targets).abs()
    inside = size.clamp(max=delta)  # not `where`: an infinite error would come back as NaN in the gradient of the other branch
    return 0.5 * inside.square() + delta * (size - inside)


def log_cosh(predictions: Tensor, targets: Tensor | None = None) -> Tensor:
    """`log(cosh(p - t))`, element by element: `r^2 / 2` for small errors, `|r| - log 2` for large ones.

    Raises:
        LossError: If the shapes differ.
    """
    error = errors_of("log_cosh", predictions, targets)
    small = error.abs() < 1
    near = 0.5 * torch.log1p(torch.where(small, error, torch.zeros_like(error)).sinh().square())  # no cancellation near 0
    size = torch.where(small, torch.ones_like(error), error.abs())
    return torch.where(small, near, size + torch.log1p(torch.exp(-2 * size)) - math.log(2))
