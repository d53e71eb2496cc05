"""Losses of embeddings: angles and distances between vectors, under optax's names."""

import torch
from torch import Tensor

from ..errors import LossError
from .elementwise import check_shapes
from .entropy import expand_where


def cosine_similarity(predictions: Tensor, targets: Tensor, *, epsilon: float = 0.0, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """Cosine of the angle between vectors along `axis`.

    Args:
        epsilon: Floor on the squared length of each vector. With 0, a vector of length 0 has no direction and gives NaN.
        where: Elements that take part, bool.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("cosine_similarity", predictions, targets)
    if where is not None:
        outside = ~expand_where(where, predictions, axis)
        predictions, targets = predictions.masked_fill(outside, 0.0), targets.masked_fill(outside, 0.0)
    return (_unit(predictions, axis, epsilon) * _unit(targets, axis, epsilon)).sum(axis)


def _unit(vectors: Tensor, axis: int, epsilon: float) -> Tensor:
    return vectors / vectors.square().sum(axis, keepdim=True).clamp(min=epsilon).sqrt()


def cosine_distance(predictions: Tensor, targets: Tensor, *, epsilon: float = 0.0, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`1 - cosine_similarity`.

    Raises:
        LossError: If the shapes differ.
    """
    return 1 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)


def ntxent(embeddings: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Normalised temperature-scaled cross entropy, averaged over all positive pairs, 0-d; 0 if there is no pair.

    `-log(exp(c_ij / t) / (exp(c_ij / t) + sum_k exp(c_ik / t)))` for samples `i`, `j` of one label, over all `k` of another, with
    `c` the cosine.

    Args:
        embeddings: `(samples, features)`.
        labels: `(samples,)`; samples of one label are positive pairs.

    Raises:
        LossError: If the numbers of samples differ.

    Reference:
        Chen et al., "A simple framework for contrastive learning of visual representations", 2020, equation 1. arXiv:2002.05709;
        as in optax, the sum in the denominator has the pair itself and the samples of other labels.
    """
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise LossError(
            f"ntxent: embeddings must be (samples, features) and labels (samples,), got {tuple(embeddings.shape)} and {tuple(labels.shape)}"
        )
    units = _unit(embeddings, -1, torch.finfo(embeddings.dtype).eps)
    scaled = units @ units.mT / temperature
    same = labels[:, None] == labels[None, :]
    pairs = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    shifted = scaled - scaled.detach().amax(1, keepdim=True)  # against overflow; it cancels
    others = shifted.exp().masked_fill(same, 0.0).sum(1, keepdim=True)
    losses = (others + shifted.exp()).log() - shifted
    return torch.where(pairs, losses, torch.zeros_like(losses)).sum() / pairs.sum().clamp(min=1)


def triplet_margin_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, axis: int = -1, norm_degree: float = 2, margin: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """`max(0, |a - p| - |a - n| + margin)` for each row.

    Args:
        norm_degree: Of the distance `(sum |x|^d + eps)^(1/d)`.
        margin: By how much a negative should be farther than a positive.
        eps: Keeps the root differentiable at 0.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Balntas et al., "Learning shallow convolutional feature descriptors with triplet losses", 2016. Differences are taken without
        sign, so that odd degrees are distances too; optax takes powers of the signed ones.
    """
    check_shapes("triplet_margin_loss", anchors, positives)
    check_shapes("triplet_margin_loss", anchors, negatives)

    def distance(other: Tensor) -> Tensor:
        return ((anchors - other).abs().pow(norm_degree).sum(axis) + eps).pow(1 / norm_degree)

    return torch.relu(distance(positives) - distance(negatives) + margin)
