"""Metrics: what is worth knowing about predictions over many batches, exact whatever the sizes of the batches.

`empty, add, merge, result`; `accumulator.py` says what a metric is.
"""

from collections.abc import Callable
from typing import Any

from .accumulator import Metric
from .atoms import EnergyErrors, ForceErrors, ForceErrorsByElement
from .classification import Accuracy, Perplexity
from .regression import MAE, RMSE

METRICS: dict[str, Callable[..., Any]] = {
    # on any keys
    "Accuracy": Accuracy,
    "MAE": MAE,
    "Perplexity": Perplexity,
    "RMSE": RMSE,
    # energies and forces
    "EnergyErrors": EnergyErrors,
    "ForceErrors": ForceErrors,
    "ForceErrorsByElement": ForceErrorsByElement,
}
"""Metrics by name."""

__all__ = ["METRICS", "Metric", *METRICS]
