"""Mean absolute and root mean square errors on any keys, pooled over everything that was seen."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .accumulator import Metric, Sums, number, read_mask, total, within, zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class MAE(Metric):
    """Mean absolute error over all labelled elements.

    Args:
        mask_key: A field of the batch, bool, True where an element counts; of the target's shape, or of its first axes.

    Example:
        >>> mae, batch = MAE(), {"target": torch.zeros(2)}
        >>> mae.result(mae.add(mae.empty(), {"prediction": torch.tensor([1.0, -3.0])}, batch))
        {'prediction/mae': tensor(2., dtype=torch.float64)}
    """

    prediction_key: str = "prediction"
    target_key: str = "target"
    mask_key: str | None = None

    def empty(self) -> Sums:
        """The sums over no batch."""
        return {"absolute": zeros(), "count": zeros()}

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        errors, valid = self.read_errors(predictions, batch)
        valid = within(valid, read_mask(self.label, batch, self.mask_key, errors))
        return {"absolute": total(errors.abs(), valid), "count": number(valid)}

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """The mean, in the units of the target."""
        return {self.name or f"{self.prediction_key}/mae": sums["absolute"] / sums["count"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSE(Metric):
    """Root mean square error over all labelled elements: the root is taken once, at the end.

    Args:
        mask_key: A field of the batch, bool, True where an element counts; of the target's shape, or of its first axes.
    """

    prediction_key: str = "prediction"
    target_key: str = "target"
    mask_key: str | None = None

    def empty(self) -> Sums:
        """The sums over no batch."""
        return {"squares": zeros(), "count": zeros()}

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        errors, valid = self.read_errors(predictions, batch)
        valid = within(valid, read_mask(self.label, batch, self.mask_key, errors))
        return {"squares": total(errors.square(), valid), "count": number(valid)}

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """The root of the mean, in the units of the target."""
        return {self.name or f"{self.prediction_key}/rmse": (sums["squares"] / sums["count"]).sqrt()}
