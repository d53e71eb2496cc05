"""Losses: terms to train with, schedules of their weights, and optax's losses as plain functions.

A term gives a numerator and a denominator, so that results do not depend on how a batch is cut; what a term is, and how terms are
added and weighted, is in `core/loss.py`. The plain functions reduce nothing.
"""

from collections.abc import Callable
from typing import Any

from .classification import BinaryCrossEntropyLoss, CrossEntropyLoss
from .elementwise import huber_loss, l2_loss, log_cosh, squared_error
from .energy import EnergyHuberLoss, EnergyMAELoss, EnergyMSELoss
from .entropy import sigmoid_binary_cross_entropy, smooth_labels, softmax_cross_entropy, softmax_cross_entropy_with_integer_labels
from .forces import ForceHuberLoss, ForceL2NormLoss, ForceMAELoss, ForceMSELoss
from .regression import HuberLoss, MAELoss, MSELoss
from .stress import StressHuberLoss, StressMSELoss

LOSSES: dict[str, Callable[..., Any]] = {
    # terms: energies, forces and stresses
    "EnergyHuberLoss": EnergyHuberLoss,
    "EnergyMAELoss": EnergyMAELoss,
    "EnergyMSELoss": EnergyMSELoss,
    "ForceHuberLoss": ForceHuberLoss,
    "ForceL2NormLoss": ForceL2NormLoss,
    "ForceMAELoss": ForceMAELoss,
    "ForceMSELoss": ForceMSELoss,
    "StressHuberLoss": StressHuberLoss,
    "StressMSELoss": StressMSELoss,
    # terms on any keys
    "BinaryCrossEntropyLoss": BinaryCrossEntropyLoss,
    "CrossEntropyLoss": CrossEntropyLoss,
    "HuberLoss": HuberLoss,
    "MAELoss": MAELoss,
    "MSELoss": MSELoss,
    # functions
    "huber_loss": huber_loss,
    "l2_loss": l2_loss,
    "log_cosh": log_cosh,
    "sigmoid_binary_cross_entropy": sigmoid_binary_cross_entropy,
    "smooth_labels": smooth_labels,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_with_integer_labels": softmax_cross_entropy_with_integer_labels,
    "squared_error": squared_error,
}

__all__ = ["LOSSES", *LOSSES]
