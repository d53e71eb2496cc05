"""What a metric is: sums over batches, merged by addition, and a result made of them at the end.

State is a dict of float64 tensors, and every one is a plain sum over samples. So the order and the sizes of batches do not matter, two
states merge by adding them, and ranks by adding theirs. Nothing here reads files or changes its arguments.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.loss import lookup, sample_mask
from ..errors import LossError

Sums = dict[str, Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric(abc.ABC):
    """Abstract: something to know about predictions over many batches.

    Args:
        prediction_key: Under which name `forward` returns the prediction.
        target_key: Under which name the batch holds the target.
        name: In results; made of the keys by default.
    """

    prediction_key: str
    target_key: str
    name: str | None = None

    @abc.abstractmethod
    def empty(self) -> Sums:
        """The sums over no batch."""

    @abc.abstractmethod
    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""

    @abc.abstractmethod
    def result(self, sums: Sums) -> dict[str, Tensor]:
        """What is known from the sums, 0-d float64 by name; NaN where nothing was counted."""

    def add(self, sums: Sums, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums with one more batch in them.

        Raises:
            LossError: If a prediction or target is missing, or of another shape than the other.
        """
        return self.merge(sums, self.count(predictions, batch))

    def merge(self, one: Sums, other: Sums) -> Sums:
        """The sums over the batches of both."""
        return {key: one[key].to(value.device) + value for key, value in other.items()}

    @property
    def label(self) -> str:
        """Name in errors."""
        return f"metric {self.name or type(self).__name__}"

    def read(self, predictions: Mapping[str, Any], batch: Any) -> tuple[Tensor, Tensor]:
        """Prediction and target by their keys, detached.

        Raises:
            LossError: If one is missing.
        """
        prediction = lookup(predictions, self.prediction_key, self.label, "prediction")
        return prediction.detach(), lookup(batch, self.target_key, self.label, "field of the batch").detach()

    def read_errors(self, predictions: Mapping[str, Any], batch: Any) -> tuple[Tensor, Tensor]:
        """`prediction - target` in float64, 0 where the target is missing; and where it is there.

        Raises:
            LossError: If the two have different shapes; nothing is broadcast.
        """
        prediction, target = self.read(predictions, batch)
        if prediction.shape != target.shape:
            raise LossError(
                f"{self.label}: prediction {tuple(prediction.shape)} and target {tuple(target.shape)} must have one shape, "
                "since nothing is broadcast"
            )
        valid = torch.isfinite(target)
        return torch.where(valid, prediction.double() - target.double(), 0.0), valid


def zeros(*shape: int) -> Tensor:
    """A sum over nothing, float64."""
    return torch.zeros(shape, dtype=torch.float64)


def total(values: Tensor, valid: Tensor) -> Tensor:
    """Sum in float64 over the valid elements, 0-d."""
    return torch.where(valid, values.double(), 0.0).sum()


def number(valid: Tensor) -> Tensor:
    """How many are valid, 0-d float64."""
    return valid.double().sum()


def within(valid: Tensor, mask: Tensor | None) -> Tensor:
    """`valid` inside a mask over the first axes as well; None for no mask."""
    if mask is None:
        return valid
    return valid & mask.reshape(*mask.shape, *(1,) * (valid.ndim - mask.ndim))


def read_mask(label: str, batch: Any, key: str | None, like: Tensor) -> Tensor | None:
    """Where elements of `like` count by the batch: inside the mask called `key`, and in samples that do not only fill up.

    Raises:
        LossError: If the mask is missing, not bool, or not over the first axes of `like`.
    """
    samples = sample_mask(batch, like.shape[0]) if like.ndim else None
    if key is None:
        return samples
    mask = lookup(batch, key, label, "mask")
    if mask.dtype != torch.bool or not mask.ndim or mask.shape != like.shape[: mask.ndim]:
        raise LossError(f"{label}: mask {key!r} must be bool, {tuple(like.shape)} or its first axes, got {mask.dtype} {tuple(mask.shape)}")
    return mask if samples is None or samples is mask else mask & samples.reshape(-1, *[1] * (mask.ndim - 1))
