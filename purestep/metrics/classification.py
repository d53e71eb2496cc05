"""Accuracy and perplexity of classes."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import LossError
from .accumulator import Metric, Sums, number, read_mask, total, within, zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassMetric(Metric):
    """Abstract: something of logits and integer labels.

    Args:
        class_axis: Which axis of the logits the classes are on.
        ignore_index: A label that marks a row as not counting; None for none.
        mask_key: A field of the batch, bool, True where a row counts; of the shape of the labels, or of their first axes.
    """

    prediction_key: str = "logits"
    target_key: str = "labels"
    class_axis: int = -1
    ignore_index: int | None = -100
    mask_key: str | None = None

    @abc.abstractmethod
    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What is summed, for each row; classes are on the last axis."""

    def empty(self) -> Sums:
        """The sums over no batch."""
        return {"total": zeros(), "count": zeros()}

    def count(self, predictions: Mapping[str, Any], batch: Any) -> Sums:
        """The sums over one batch."""
        logits, labels = self.read(predictions, batch)
        logits = logits.movedim(self.class_axis, -1)
        if labels.shape != logits.shape[:-1] or labels.is_floating_point():
            raise LossError(
                f"{self.label}: logits without their classes (axis {self.class_axis}) are {tuple(logits.shape[:-1])}, so should integer "
                f"labels be, got {labels.dtype} {tuple(labels.shape)}"
            )
        valid = torch.ones_like(labels, dtype=torch.bool) if self.ignore_index is None else labels != self.ignore_index
        valid = within(valid, read_mask(self.label, batch, self.mask_key, labels))
        values = self.values(logits, torch.where(valid, labels, 0).to(torch.int64))
        return {"total": total(values, valid), "count": number(valid)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy(ClassMetric):
    """Fraction of rows whose largest logit is that of the label."""

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """1 where right."""
        return logits.argmax(-1) == labels

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """The fraction, in [0, 1]."""
        return {self.name or "accuracy": sums["total"] / sums["count"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Perplexity(ClassMetric):
    """Exponential of the mean cross entropy over all rows, base e; the mean is taken over everything, then the exponential."""

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.logsumexp(wide, -1) - wide.gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def result(self, sums: Sums) -> dict[str, Tensor]:
        """The perplexity, 1 or more."""
        return {self.name or "perplexity": (sums["total"] / sums["count"]).exp()}
