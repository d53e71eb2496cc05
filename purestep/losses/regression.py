"""Regression losses on any keys: one mean over all labelled elements, whatever the shape."""

import abc
import dataclasses
from typing import Any

from torch import Tensor

from ..core.loss import LossTerm, Sums
from ..errors import LossError
from .elementwise import huber_loss
from .masks import read_mask
from .pairing import DTypePolicy, check_delta, check_dtype_policy, difference, labelled, pair
from .reduction import by_sample, pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionTerm(LossTerm):
    """Abstract: the mean of some function of the error over all elements that count. The first axis is that of the samples.

    Samples with which a `Loader` fills up a batch never count.

    Args:
        mask_key: A field of the batch, bool, True where an element counts; of the target's shape, or of its first axes.
        ignore_nonfinite: Leave out elements whose target is NaN or infinite; otherwise such a target makes the loss so.
        dtype_policy: What to do where prediction and target differ in dtype.
    """

    prediction_key: str = "prediction"
    target_key: str = "target"
    mask_key: str | None = None
    ignore_nonfinite: bool = False
    dtype_policy: DTypePolicy = "strict"

    def __post_init__(self) -> None:
        check_dtype_policy(self.label, self.dtype_policy)

    @abc.abstractmethod
    def error(self, residual: Tensor) -> Tensor:
        """The function of the error, element by element; 0 at 0."""

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the elements of the batch."""
        prediction, target = pair(self.label, prediction, target, self.dtype_policy)
        if not prediction.ndim:
            raise LossError(f"{self.label}: prediction and target need a first axis, that of the samples; got 0-d tensors")
        valid = labelled(target, read_mask(self.label, batch, self.mask_key, target), self.ignore_nonfinite)
        return pool(*by_sample(self.error(difference(prediction, target, valid)), valid))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MSELoss(RegressionTerm):
    """Mean squared error over all elements that count.

    Example:
        >>> sums = MSELoss()(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), {})
        >>> sums.numerator / sums.denominator
        tensor(5.)
    """

    def error(self, residual: Tensor) -> Tensor:
        """`r^2`."""
        return residual.square()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MAELoss(RegressionTerm):
    """Mean absolute error over all elements that count."""

    def error(self, residual: Tensor) -> Tensor:
        """`|r|`."""
        return residual.abs()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuberLoss(RegressionTerm):
    """Mean Huber loss over all elements that count: `r^2 / 2` below `delta`, `delta (|r| - delta / 2)` above.

    Args:
        delta: Where the square ends, in the units of the target.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.label, self.delta)

    def error(self, residual: Tensor) -> Tensor:
        """`H(r)`."""
        return huber_loss(residual, delta=self.delta)
