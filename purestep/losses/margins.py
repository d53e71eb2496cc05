"""Losses of scores that vanish beyond a margin, under optax's names: nothing is reduced."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .elementwise import check_shapes
from .entropy import check_labels, pick


def hinge_loss(predictor_outputs: Tensor, targets: Tensor) -> Tensor:
    """`max(0, 1 - s y)`, element by element.

    Args:
        targets: -1 or 1.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("hinge_loss", predictor_outputs, targets)
    return torch.relu(1 - predictor_outputs * targets)


def perceptron_loss(predictor_outputs: Tensor, targets: Tensor) -> Tensor:
    """`max(0, -s y)`, element by element.

    Args:
        targets: -1 or 1.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("perceptron_loss", predictor_outputs, targets)
    return torch.relu(-predictor_outputs * targets)


def sparsemax_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary sparsemax loss, element by element: 0 once the score is beyond 1 on the side of its label.

    `h(-z)` for the label 1, `h(z)` for 0, where `h` is 0 below -1, `(z + 1)^2 / 4` up to 1, and `z` above.

    Args:
        labels: 0 or 1.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Blondel, Martins, Niculae, "Learning with Fenchel-Young losses", 2020, section 4.4. arXiv:1901.02324
    """
    check_shapes("sparsemax_loss", logits, labels)
    wrong = torch.where(labels.bool(), -logits, logits)
    bounded = wrong.clamp(-1.0, 1.0)
    return 0.25 * (bounded + 1).square() + torch.relu(wrong - 1)


def multiclass_hinge_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`max_c (s_c + [c is not the label]) - s_label` for each row; classes along the last axis.

    Raises:
        LossError: If the labels are not integers, one for each row.
    """
    check_labels("multiclass_hinge_loss", scores, labels, -1)
    others = torch.arange(scores.shape[-1], device=scores.device) != labels.unsqueeze(-1)
    return (scores + others.to(scores.dtype)).amax(-1) - pick(scores, labels, -1)


def multiclass_perceptron_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`max_c s_c - s_label` for each row; classes along the last axis.

    Raises:
        LossError: If the labels are not integers, one for each row.

    Reference:
        Collins, "Discriminative training methods for hidden Markov models", 2002.
    """
    check_labels("multiclass_perceptron_loss", scores, labels, -1)
    return scores.amax(-1) - pick(scores, labels, -1)


def multiclass_sparsemax_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`p . s - |p|^2 / 2 + 1/2 - s_label` for each row, where `p` is the point of the simplex nearest to the scores `s`.

    Raises:
        LossError: If the labels are not integers, one for each row.

    Reference:
        Martins and Astudillo, "From softmax to sparsemax", 2016, equation 17. arXiv:1602.02068
    """
    check_labels("multiclass_sparsemax_loss", scores, labels, -1)
    relative = scores - pick(scores, labels, -1).unsqueeze(-1)
    probabilities = _nearest_in_simplex(relative)
    return (probabilities * relative).sum(-1) - 0.5 * probabilities.square().sum(-1) + 0.5


def _nearest_in_simplex(scores: Tensor) -> Tensor:
    """Euclidean projection of each row on the simplex (Martins and Astudillo 2016, algorithm 1)."""
    ordered = scores.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device).to(scores.dtype)
    size = (ranks * ordered > sums).sum(-1, keepdim=True)
    return torch.relu(scores - sums.gather(-1, size - 1) / size)


def make_fenchel_young_loss(max_fun: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of scores along the last axis from a function that smooths their maximum: `max_fun(s) - s . y`.

    Args:
        max_fun: From scores `(..., n)` to `(...)`; `torch.logsumexp` over the last axis gives the cross entropy.

    Returns:
        `loss(scores, targets, *args)`; further arguments go to `max_fun`.

    Reference:
        Blondel, Martins, Niculae, "Learning with Fenchel-Young losses", 2020, definition 2. arXiv:1901.02324
    """

    def fenchel_young_loss(scores: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_shapes("fenchel_young_loss", scores, targets)
        return max_fun(scores, *args, **kwargs) - (targets * scores).sum(-1)

    return fenchel_young_loss
