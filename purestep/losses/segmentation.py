"""Losses of overlap between regions, under optax's names: the caller averages over the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .elementwise import check_shapes


def dice_loss(
    predictions: Tensor,
    targets: Tensor,
    *,
    class_weights: Tensor | None = None,
    smooth: float = 1.0,
    alpha: float = 0.5,
    beta: float = 0.5,
    apply_softmax: bool = True,
    ignore_background: bool = False,
    axis: Sequence[int] | None = None,
) -> Tensor:
    """One minus the overlap of each class, averaged over classes: `1 - (I + s) / (I + alpha (P - I) + beta (T - I) + s)`.

    `P`, `T` and `I` are the sums over pixels of prediction, target and their product.

    Args:
        predictions: Logits, `(batch, ..., classes)`; one class is taken by the sigmoid, more by the softmax.
        targets: 0 and 1, the same shape.
        class_weights: Factor of each class, `(classes,)`.
        smooth: Added above and below, so that an absent class gives no division by 0.
        alpha: Weight of what is predicted but not there.
        beta: Weight of what is there but not predicted.
        apply_softmax: False where the predictions are probabilities already.
        ignore_background: Leave out the first class, if there are more.
        axis: Of the pixels; all but the first and the last by default.

    Returns:
        One value for each sample, `(batch,)`.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Milletari et al., "V-Net", 2016, section 3 (alpha = beta = 1/2). arXiv:1606.04797; Salehi et al., "Tversky loss function for
        image segmentation", 2017, equation 4. arXiv:1706.05721
    """
    return _of_classes(predictions, targets, class_weights, smooth, alpha, beta, apply_softmax, ignore_background, axis).mean(-1)


def _of_classes(
    predictions: Tensor,
    targets: Tensor,
    class_weights: Tensor | None,
    smooth: float,
    alpha: float,
    beta: float,
    apply_softmax: bool,
    ignore_background: bool,
    axis: Sequence[int] | None,
) -> Tensor:
    """Loss of each class of each sample."""
    check_shapes("dice_loss", predictions, targets)
    classes = predictions.shape[-1]
    if apply_softmax:
        predictions = torch.sigmoid(predictions) if classes == 1 else torch.softmax(predictions, -1)
    pixels = tuple(range(1, predictions.ndim - 1)) if axis is None else tuple(axis)
    both, predicted, there = (_sum(x, pixels) for x in (predictions * targets, predictions, targets))
    losses = 1 - (both + smooth) / (both + alpha * (predicted - both) + beta * (there - both) + smooth)
    if class_weights is not None:
        losses = losses * class_weights
    return losses[..., 1:] if ignore_background and classes > 1 else losses


def _sum(values: Tensor, pixels: tuple[int, ...]) -> Tensor:
    return values.sum(pixels) if pixels else values  # torch takes no axes for all axes


def binary_dice_loss(predictions: Tensor, targets: Tensor, *, smooth: float = 1.0, apply_sigmoid: bool = True) -> Tensor:
    """`dice_loss` of one class.

    Args:
        predictions: Logits, `(batch, ...)` or `(batch, ..., 1)`.
        targets: 0 and 1, the same shape.
        apply_sigmoid: False where the predictions are probabilities already.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("binary_dice_loss", predictions, targets)
    if predictions.shape[-1] != 1:
        predictions, targets = predictions.unsqueeze(-1), targets.unsqueeze(-1)
    return dice_loss(predictions, targets, smooth=smooth, apply_softmax=apply_sigmoid)


def multiclass_generalized_dice_loss(
    predictions: Tensor, targets: Tensor, *, smooth: float = 1.0, apply_softmax: bool = True, ignore_background: bool = False
) -> Tensor:
    """`dice_loss` with classes weighted by the inverse square of how many pixels they have, averaged over samples and classes, 0-d.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Sudre et al., "Generalised Dice overlap as a deep learning loss function for highly unbalanced segmentations", 2017,
        section 2. arXiv:1707.03237; as in optax, the weights are taken over the batch and sum to the number of classes.
    """
    frequencies = targets.flatten(0, -2).sum(0)
    weights = 1 / (frequencies.square() + 1e-7)
    weights = weights / weights.sum() * targets.shape[-1]
    return _of_classes(predictions, targets, weights, smooth, 0.5, 0.5, apply_softmax, ignore_background, None).mean()
