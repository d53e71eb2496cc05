"""Cross entropies as terms: classes by logits, with masks, ignored labels and smoothing."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..core.loss import LossTerm, Sums
from ..errors import LossError
from .entropy import sigmoid_binary_cross_entropy, weigh
from .masks import read_mask
from .pairing import check_tensor, expand_mask, replace, widen
from .reduction import by_sample, pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyLoss(LossTerm):
    """Mean cross entropy over all rows that count: `-sum_c q_c log softmax(z)_c`.

    Logits have their classes on the last axis, `(B, C)` or `(B, T, C)`. Images, `(B, C, H, W)` as `torch.nn.functional.cross_entropy`
    takes them, need `class_axis=1`; the shapes of logits and labels are compared, so that a wrong axis is an error.

    Args:
        class_axis: Which axis of the logits the classes are on.
        label_smoothing: Weight of the uniform distribution mixed into the labels, in [0, 1).
        ignore_index: An integer label that marks a row as not counting; None for none.
        mask_key: A field of the batch, bool, True where a row counts; of the shape of the labels, or of their first axes.

    Example:
        >>> sums = CrossEntropyLoss()(torch.zeros(3, 4), torch.tensor([0, 3, -100]), {})
        >>> sums.numerator / sums.denominator, sums.denominator
        (tensor(1.3863), tensor(2.))
    """

    prediction_key: str = "logits"
    target_key: str = "labels"
    class_axis: int = -1
    label_smoothing: float = 0.0
    ignore_index: int | None = -100
    mask_key: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise LossError(f"{self.label}: label_smoothing must be in [0, 1), got {self.label_smoothing}")

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the rows of the batch.

        Args:
            prediction: Logits.
            target: Integer classes, the shape of the logits without `class_axis`; or probabilities, the shape of the logits.
        """
        logits = self._logits(prediction)
        soft = self._is_soft(logits, target)
        rows = logits.shape[:-1]
        valid = torch.ones(rows, dtype=torch.bool, device=logits.device)
        if (mask := read_mask(self.label, batch, self.mask_key, valid)) is not None:
            valid = expand_mask(mask, valid)
        if not soft and self.ignore_index is not None:
            valid = valid & (target != self.ignore_index)
        # a masked row is replaced before the softmax: NaN or -inf in it would come back in the gradient as 0 * NaN
        logs = torch.log_softmax(replace(logits, valid.unsqueeze(-1)), -1)
        values = self._from_probabilities(logs, target, valid) if soft else self._from_classes(logs, target, valid)
        return pool(*by_sample(replace(values, valid), valid))

    def _logits(self, prediction: Any) -> Tensor:
        check_tensor(self.label, prediction, "prediction")
        if prediction.ndim < 2 or not -prediction.ndim <= self.class_axis < prediction.ndim or not prediction.is_floating_point():
            raise LossError(
                f"{self.label}: logits must be floating-point, with samples on the first axis and classes on axis {self.class_axis}, "
                f"got {prediction.dtype} {tuple(prediction.shape)}"
            )
        return widen(prediction).movedim(self.class_axis, -1)

    def _is_soft(self, logits: Tensor, target: Any) -> bool:
        check_tensor(self.label, target, "target")
        soft = target.is_floating_point()
        axis = self.class_axis % logits.ndim
        shape = tuple(logits.movedim(-1, axis).shape)
        expected = shape if soft else (*shape[:axis], *shape[axis + 1 :])
        if tuple(target.shape) != expected or target.dtype == torch.bool:
            kind = "probabilities" if soft else "integer labels"
            raise LossError(
                f"{self.label}: logits {shape} have their classes on axis {self.class_axis}, so {kind} must be {expected}, "
                f"got {target.dtype} {tuple(target.shape)}; {_advice(shape, tuple(target.shape), soft)}"
            )
        return soft

    def _from_classes(self, logs: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        labels = replace(labels.to(torch.int64), valid)  # an ignored label is no class
        picked = -logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        if not self.label_smoothing:
            return picked
        return (1 - self.label_smoothing) * picked - self.label_smoothing * logs.mean(-1)

    def _from_probabilities(self, logs: Tensor, probabilities: Tensor, valid: Tensor) -> Tensor:
        probabilities = replace(probabilities.movedim(self.class_axis, -1).to(logs.dtype), valid.unsqueeze(-1))
        if self.label_smoothing:
            probabilities = (1 - self.label_smoothing) * probabilities + self.label_smoothing / logs.shape[-1]
        return -weigh(probabilities, logs).sum(-1)


def _advice(logits: tuple[int, ...], target: tuple[int, ...], soft: bool) -> str:
    if not soft:
        for axis in range(1, len(logits)):
            if target == (*logits[:axis], *logits[axis + 1 :]):
                return f"for classes on axis {axis} give class_axis={axis}"
    return "are both of the same batch?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropyLoss(LossTerm):
    """Mean binary cross entropy of logits over all elements that count: `-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z))`.

    Labels have the shape of the logits: bool, integers 0 and 1, or probabilities.

    Args:
        mask_key: A field of the batch, bool, True where an element counts; of the shape of the labels, or of their first axes.
    """

    prediction_key: str = "logits"
    target_key: str = "labels"
    mask_key: str | None = None

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the elements of the batch."""
        check_tensor(self.label, prediction, "prediction")
        check_tensor(self.label, target, "target")
        if prediction.shape != target.shape or not prediction.ndim:
            raise LossError(
                f"{self.label}: logits {tuple(prediction.shape)} and labels {tuple(target.shape)} must have one shape, since nothing is "
                f"broadcast; reshape the logits in forward"
            )
        logits, labels = widen(prediction), target.to(widen(prediction).dtype)
        valid = torch.ones_like(logits, dtype=torch.bool)
        if (mask := read_mask(self.label, batch, self.mask_key, logits)) is not None:
            valid = expand_mask(mask, logits)
        values = sigmoid_binary_cross_entropy(replace(logits, valid), replace(labels, valid))
        return pool(*by_sample(replace(values, valid), valid))
