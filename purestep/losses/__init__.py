"""Losses: terms to train with, schedules of their weights, and optax's losses as plain functions.

A term gives a numerator and a denominator, so that results do not depend on how a batch is cut; what a term is, and how terms are
added and weighted, is in `core/loss.py`. The plain functions reduce nothing.
"""

from collections.abc import Callable
from typing import Any

from .classification import BinaryCrossEntropyLoss, CrossEntropyLoss
from .ctc import ctc_loss
from .divergences import convex_kl_divergence, generalized_kl_divergence, kl_divergence, kl_divergence_with_log_targets
from .elementwise import huber_loss, l2_loss, log_cosh, squared_error
from .energy import EnergyHuberLoss, EnergyMAELoss, EnergyMSELoss
from .entropy import (
    poly_loss_cross_entropy,
    ranking_softmax_loss,
    safe_softmax_cross_entropy,
    sigmoid_binary_cross_entropy,
    sigmoid_focal_loss,
    smooth_labels,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
    weighted_logsoftmax,
)
from .forces import ForceHuberLoss, ForceL2NormLoss, ForceMAELoss, ForceMSELoss
from .gradient_surgery import balance_norms as balance_norms
from .gradient_surgery import project_conflicts as project_conflicts
from .gradient_surgery import weighted_sum as weighted_sum
from .margins import (
    hinge_loss,
    make_fenchel_young_loss,
    multiclass_hinge_loss,
    multiclass_perceptron_loss,
    multiclass_sparsemax_loss,
    perceptron_loss,
    sparsemax_loss,
)
from .regression import HuberLoss, MAELoss, MSELoss
from .segmentation import binary_dice_loss, dice_loss, multiclass_generalized_dice_loss
from .similarity import cosine_distance, cosine_similarity, ntxent, triplet_margin_loss
from .stress import StressHuberLoss, StressMSELoss
from .weights import ConstantWeight, CosineWeight, LinearWeight, PiecewiseWeight

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
    "binary_dice_loss": binary_dice_loss,
    "convex_kl_divergence": convex_kl_divergence,
    "cosine_distance": cosine_distance,
    "cosine_similarity": cosine_similarity,
    "ctc_loss": ctc_loss,
    "dice_loss": dice_loss,
    "generalized_kl_divergence": generalized_kl_divergence,
    "hinge_loss": hinge_loss,
    "huber_loss": huber_loss,
    "kl_divergence": kl_divergence,
    "kl_divergence_with_log_targets": kl_divergence_with_log_targets,
    "l2_loss": l2_loss,
    "log_cosh": log_cosh,
    "make_fenchel_young_loss": make_fenchel_young_loss,
    "multiclass_generalized_dice_loss": multiclass_generalized_dice_loss,
    "multiclass_hinge_loss": multiclass_hinge_loss,
    "multiclass_perceptron_loss": multiclass_perceptron_loss,
    "multiclass_sparsemax_loss": multiclass_sparsemax_loss,
    "ntxent": ntxent,
    "perceptron_loss": perceptron_loss,
    "poly_loss_cross_entropy": poly_loss_cross_entropy,
    "ranking_softmax_loss": ranking_softmax_loss,
    "safe_softmax_cross_entropy": safe_softmax_cross_entropy,
    "sigmoid_binary_cross_entropy": sigmoid_binary_cross_entropy,
    "sigmoid_focal_loss": sigmoid_focal_loss,
    "smooth_labels": smooth_labels,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_with_integer_labels": softmax_cross_entropy_with_integer_labels,
    "sparsemax_loss": sparsemax_loss,
    "squared_error": squared_error,
    "triplet_margin_loss": triplet_margin_loss,
    "weighted_logsoftmax": weighted_logsoftmax,
}
"""Terms and functions by name."""

WEIGHTS: dict[str, Callable[..., Any]] = {
    "ConstantWeight": ConstantWeight,
    "CosineWeight": CosineWeight,
    "LinearWeight": LinearWeight,
    "PiecewiseWeight": PiecewiseWeight,
}
"""Schedules of weights by name."""

__all__ = ["LOSSES", "WEIGHTS", *LOSSES, *WEIGHTS]
