"""Which checkpoint is best: by a metric of the manifests, never one whose metric or weights are not finite."""

import math
from collections.abc import Sequence
from typing import Literal

from .manifest import Manifest
from .store import Checkpoint

Mode = Literal["min", "max"]


def parse_best(text: str) -> tuple[str, Mode]:
    """Metric and mode of `best:<metric>`, `best:min:<metric>` or `best:max:<metric>`.

    Raises:
        ValueError: If the text is none of these.
    """
    head, _, metric = text.partition(":")
    mode, _, rest = metric.partition(":")
    if head != "best" or not metric:
        raise ValueError(f"step must be 'latest', a label or 'best:<metric>', got {text!r}")
    if mode in ("min", "max") and rest:
        return rest, "max" if mode == "max" else "min"
    return metric, "min"


def metric_of(manifest: Manifest, metric: str) -> float | None:
    """A manifest's metric; None where it is absent, not finite, or belongs to weights that are not."""
    text = manifest.metrics.get(metric)
    if text is None or manifest.finite is False:
        return None
    value = float.fromhex(text)
    return value if math.isfinite(value) else None


def best_of(checkpoints: Sequence[Checkpoint], metric: str, mode: Mode) -> list[Checkpoint]:
    """Checkpoints that have a finite metric, best first; of equal ones the newer first."""
    sign = 1.0 if mode == "min" else -1.0
    found = [(metric_of(checkpoint.manifest, metric), checkpoint) for checkpoint in checkpoints]
    ranked = [(sign * value, -checkpoint.manifest.label, checkpoint) for value, checkpoint in found if value is not None]
    return [checkpoint for *_, checkpoint in sorted(ranked, key=lambda row: row[:2])]
