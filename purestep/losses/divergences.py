"""Distances between distributions, under optax's names: one value for each row, nothing is reduced."""

import torch
from torch import Tensor

from .elementwise import check_shapes
from .entropy import sum_where, weigh


def kl_divergence(log_predictions: Tensor, targets: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """Kullback-Leibler divergence `sum_c q_c (log q_c - log p_c)` for each row.

    Args:
        log_predictions: Logarithms of probabilities.
        targets: Probabilities; where one is 0, it adds 0.
        where: Elements that take part, bool.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Kullback and Leibler, "On information and sufficiency", 1951.
    """
    check_shapes("kl_divergence", log_predictions, targets)
    zero = targets == 0
    own = targets * torch.where(zero, torch.ones_like(targets), targets).log()
    return sum_where(own - weigh(targets, log_predictions), axis, where)


def kl_divergence_with_log_targets(log_predictions: Tensor, log_targets: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`kl_divergence` of targets that are given by their logarithms.

    Raises:
        LossError: If the shapes differ.
    """
    check_shapes("kl_divergence_with_log_targets", log_predictions, log_targets)
    impossible = log_targets == float("-inf")
    logs = torch.where(impossible, torch.zeros_like(log_targets), log_targets)
    targets = logs.exp().masked_fill(impossible, 0.0)
    return sum_where(targets * logs - weigh(targets, log_predictions), axis, where)


def generalized_kl_divergence(log_predictions: Tensor, targets: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """`kl_divergence` of measures that need not sum to 1: plus `sum_c p_c - q_c`.

    Raises:
        LossError: If the shapes differ.

    Reference:
        Bregman, "The relaxation method of finding the common point of convex sets", 1967.
    """
    difference = sum_where(log_predictions.exp() - targets, axis, where)
    return kl_divergence(log_predictions, targets, axis, where) + difference


def convex_kl_divergence(log_predictions: Tensor, targets: Tensor, axis: int = -1, where: Tensor | None = None) -> Tensor:
    """The older name of `generalized_kl_divergence`."""
    return generalized_kl_divergence(log_predictions, targets, axis, where)
