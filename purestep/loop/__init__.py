"""The loop: the one `for` over batches, what may end it, and the settings of the process that runs it."""

from .running import FitResult, fit
from .runtime import RuntimeSettings, use_runtime
from .stopping import BestTracker, EarlyStopping, RefuseNonfinite, StopAfterGlobalSteps, StopAfterSamples, StopAtMetric, StopAtTime

__all__ = [
    "BestTracker",
    "EarlyStopping",
    "FitResult",
    "RefuseNonfinite",
    "RuntimeSettings",
    "StopAfterGlobalSteps",
    "StopAfterSamples",
    "StopAtMetric",
    "StopAtTime",
    "fit",
    "use_runtime",
]
