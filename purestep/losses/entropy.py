"""Cross entropies of logits, under optax's names: one value for each row or element, nothing is reduced.

Logits may be `-inf` (a class that is impossible): where its label is 0 it adds exactly 0, and no gradient becomes NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import LossError
from .elementwise import check_shapes


def weigh(weights: Tensor, logs: Tensor) -> Tensor:
    """`weights * logs` with `0 * -inf = 0`, as in the limit of `x log x`; its gradient is 0 too."""
    nothing = (weights == 0) & logs.isinf()
    return weights * torch.where(nothing, torch.zeros_like(logs), logs)


def log_softmax_where(logits: Tensor, axis: int, where: Tensor | None) -> Tensor:
    """Log of the softmax over the elements inside `where`; `-inf` outside it, and 0 in rows that are wholly outside."""
    if where is None:
        return torch.log_softmax(logits, axis)
    where = where.expand(logits.shape)
    inside = logits.masked_fill(~where, float("-inf"))
    empty = ~where.any(axis, keepdim=True)
    return torch.log_softmax(inside.masked_fill(empty, 0.0), axis).masked_fill(empty, 0.0)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`-sum_c q_c log softmax(z)_c` for each row.

    Args:
        logits: Unnormalised log probabilities, classes along `axis`.
        labels: Probabilities of the classes, the shape of the logits.
        where: Elements that take part, bool; a row without any gives 0.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("softmax_cross_entropy", logits, labels)
    return -_sum_where(weigh(labels, log_softmax_where(logits, axis, where)), axis, where)


def _sum_where(values: Tensor, axis: int, where: Tensor | None) -> Tensor:
    return values.sum(axis) if where is None else values.masked_fill(~where.expand(values.shape), 0.0).sum(axis)


def softmax_cross_entropy_with_integer_labels(logits: Tensor, labels: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`-log softmax(z)_label` for each row.

    Args:
        logits: Unnormalised log probabilities, classes along `axis`.
        labels: Class of each row, integer, the shape of the logits without `axis`.
        where: Elements that take part, bool; a row without any gives 0.

    Raises:
        LossError: If the labels are not integers, or of another shape.

    Example:
        >>> softmax_cross_entropy_with_integer_labels(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor([1.3863, 1.3863])
    """
    name = "softmax_cross_entropy_with_integer_labels"
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise LossError(f"{name}: labels must be integers, got {labels.dtype}; for probabilities use softmax_cross_entropy")
    axis = axis % logits.ndim
    rows = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    if tuple(labels.shape) != rows:
        raise LossError(
            f"{name}: labels {tuple(labels.shape)} should be {rows} for logits {tuple(logits.shape)} with classes on axis {axis}"
        )
    return -log_softmax_where(logits, axis, where).gather(axis, labels.to(torch.int64).unsqueeze(axis)).squeeze(axis)


def sigmoid_binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z))`, element by element.

    Args:
        labels: Probabilities in [0, 1], the shape of the logits.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("sigmoid_binary_cross_entropy", logits, labels)
    labels = labels.to(logits.dtype)
    return -weigh(labels, F.logsigmoid(logits)) - weigh(1 - labels, F.logsigmoid(-logits))


def smooth_labels(labels: Tensor, alpha: float) -> Tensor:
    """`(1 - alpha) labels + alpha / classes`, with classes along the last axis.

    Reference:
        Müller et al., "When does label smoothing help?", 2019, section 1. arXiv:1906.02629
    """
    return (1 - alpha) * labels + alpha / labels.shape[-1]
