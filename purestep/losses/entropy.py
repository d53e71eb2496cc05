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


def sum_where(values: Tensor, axis: int, where: Tensor | None) -> Tensor:
    """Sum over the elements inside `where`."""
    return values.sum(axis) if where is None else values.masked_fill(~expand_where(where, values, axis), 0.0).sum(axis)


def expand_where(where: Tensor, logits: Tensor, axis: int) -> Tensor:
    """A mask of rows or of elements, as one of elements."""
    where = where.bool()
    return (where if where.ndim == logits.ndim else where.unsqueeze(axis)).expand(logits.shape)


def log_softmax_where(logits: Tensor, axis: int, where: Tensor | None) -> Tensor:
    """Log of the softmax over the elements inside `where`; outside and in rows without any, 0."""
    if where is None:
        return torch.log_softmax(logits, axis)
    where = expand_where(where, logits, axis)
    return torch.log_softmax(_inside(logits, axis, where), axis).masked_fill(~where, 0.0)


def _inside(logits: Tensor, axis: int, where: Tensor) -> Tensor:
    """Logits with `-inf` outside `where`, and 0 in rows that are wholly outside: a softmax of nothing would be NaN."""
    empty = ~where.any(axis, keepdim=True)
    return logits.masked_fill(~where, float("-inf")).masked_fill(empty, 0.0)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`-sum_c q_c log softmax(z)_c` for each row.

    Args:
        logits: Unnormalised log probabilities, classes along `axis`.
        labels: Probabilities of the classes, the shape of the logits.
        where: Elements that take part, bool; the shape of the logits, or that without `axis`. A row without any gives 0.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("softmax_cross_entropy", logits, labels)
    return -sum_where(weigh(labels, log_softmax_where(logits, axis, where)), axis, where)


def safe_softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`softmax_cross_entropy` over the last axis, which is as safe here: the name is kept for those who know it."""
    return softmax_cross_entropy(logits, labels)


def softmax_cross_entropy_with_integer_labels(logits: Tensor, labels: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`-log softmax(z)_label` for each row.

    Args:
        logits: Unnormalised log probabilities, classes along `axis`.
        labels: Class of each row, integer, the shape of the logits without `axis`.
        where: Elements that take part, bool; the shape of the logits, or that without `axis`. A row without any gives 0, whatever
            its label.

    Raises:
        LossError: If the labels are not integers, or of another shape.

    Example:
        >>> softmax_cross_entropy_with_integer_labels(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor([1.3863, 1.3863])
    """
    axis = check_labels("softmax_cross_entropy_with_integer_labels", logits, labels, axis)
    if where is None:
        return torch.logsumexp(logits, axis) - pick(logits, labels, axis)
    where = expand_where(where, logits, axis)
    some = where.any(axis)
    picked = pick(logits, torch.where(some, labels, torch.zeros_like(labels)), axis)
    return torch.where(some, torch.logsumexp(_inside(logits, axis, where), axis) - picked, torch.zeros_like(picked))


def check_labels(name: str, logits: Tensor, labels: Tensor, axis: int) -> int:
    """The axis of the classes, counted from the front.

    Raises:
        LossError: If the labels are not integers, one for each row of logits.
    """
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise LossError(
            f"{name}: labels must be integers, the class of each row, got {labels.dtype}; for probabilities use softmax_cross_entropy"
        )
    axis = axis % logits.ndim
    rows = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    if tuple(labels.shape) != rows:
        raise LossError(
            f"{name}: labels {tuple(labels.shape)} should be {rows} for logits {tuple(logits.shape)} with classes on axis {axis}"
        )
    return axis


def pick(logits: Tensor, labels: Tensor, axis: int) -> Tensor:
    """The logit of each row's label."""
    return logits.gather(axis, labels.to(torch.int64).unsqueeze(axis)).squeeze(axis)


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


def sigmoid_focal_loss(logits: Tensor, labels: Tensor, *, alpha: float | None = None, gamma: float = 2.0) -> Tensor:
    """Binary cross entropy times `(1 - p)^gamma`, where `p` is the probability given to the label; element by element.

    Args:
        labels: Probabilities in [0, 1], the shape of the logits.
        alpha: Weight of the label 1, against `1 - alpha` of 0; None weighs both with 1.
        gamma: How much less an element counts that is right already.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Lin et al., "Focal loss for dense object detection", 2017, equation 5. arXiv:1708.02002
    """
    entropy = sigmoid_binary_cross_entropy(logits, labels)
    labels = labels.to(logits.dtype)
    # 1 - p is taken from its own sigmoid: as a difference it would be 0 long before it is
    missing = torch.sigmoid(-logits) * labels + torch.sigmoid(logits) * (1 - labels)
    loss = entropy * missing.pow(gamma)
    return loss if alpha is None else (alpha * labels + (1 - alpha) * (1 - labels)) * loss


def poly_loss_cross_entropy(logits: Tensor, labels: Tensor, *, epsilon: float = 2.0, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`softmax_cross_entropy` plus `epsilon * sum_c q_c (1 - softmax(z)_c)` for each row.

    Args:
        labels: Probabilities of the classes, the shape of the logits.
        epsilon: Coefficient of the first polynomial term.
        where: As for `softmax_cross_entropy`.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Leng et al., "PolyLoss: a polynomial expansion perspective of classification loss functions", 2022, equation 6 (Poly-1).
        arXiv:2204.12511
    """
    entropy = softmax_cross_entropy(logits, labels, axis, where)
    missing = labels * -torch.expm1(log_softmax_where(logits, axis, where))
    return entropy + epsilon * sum_where(missing, axis, where)


def smooth_labels(labels: Tensor, alpha: float, axis: int = -1) -> Tensor:
    """`(1 - alpha) labels + alpha / classes`, with classes along an axis.

    Reference:
        Müller et al., "When does label smoothing help?", 2019, section 1. arXiv:1906.02629
    """
    return (1 - alpha) * labels + alpha / labels.shape[axis]


def weighted_logsoftmax(x: Tensor, weights: Tensor) -> Tensor:
    """`w_i log softmax(x)_i` along the last axis, 0 where the weight is 0, element by element.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("weighted_logsoftmax", x, weights)
    return weigh(weights, torch.log_softmax(x, -1))


def ranking_softmax_loss(logits: Tensor, labels: Tensor, *, where: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    """`-sum_i y_i log softmax(s)_i` for each list of items along the last axis.

    optax averages over the lists by default; here, as in all of these functions, the caller does.

    Args:
        logits: Score of each item.
        labels: Relevance of each item, the shape of the logits.
        where: Items that take part, bool; a list without any gives 0.
        weights: Weight of each item.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("ranking_softmax_loss", logits, labels)
    labels = labels.to(logits.dtype)
    return softmax_cross_entropy(logits, labels if weights is None else labels * weights, where=where)
