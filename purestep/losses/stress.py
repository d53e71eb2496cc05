"""Losses of the stress of each graph, `(B, 3, 3)`, eV/Angstrom^3, tension positive."""

import abc
import dataclasses
from typing import Any

from torch import Tensor

from ..core.loss import LossTerm, Sums
from ..errors import LossError
from .elementwise import huber_loss
from .graphs import graph_mask
from .pairing import DTypePolicy, check_delta, check_dtype_policy, difference, labelled, pair
from .reduction import balance, by_sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class StressTerm(LossTerm):
    """Abstract: a mean over graphs of the mean over the labelled components of each.

    Args:
        ignore_nonfinite: Leave out components whose target is NaN or infinite; otherwise such a target makes the loss so.
        dtype_policy: What to do where prediction and target differ in dtype.
    """

    prediction_key: str = "stress"
    target_key: str = "stress"
    ignore_nonfinite: bool = False
    dtype_policy: DTypePolicy = "strict"

    def __post_init__(self) -> None:
        check_dtype_policy(self.label, self.dtype_policy)

    @abc.abstractmethod
    def error(self, residual: Tensor) -> Tensor:
        """The function of the error, element by element; 0 at 0."""

    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count over the graphs of the batch."""
        prediction, target = pair(self.label, prediction, target, self.dtype_policy)
        if prediction.shape[1:] != (3, 3):
            raise LossError(f"{self.label}: stresses must be (B, 3, 3), one for each graph, got {tuple(prediction.shape)}")
        valid = labelled(target, graph_mask(self.label, batch, prediction.shape[0]), self.ignore_nonfinite)
        return balance(*by_sample(self.error(difference(prediction, target, valid)), valid))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StressMSELoss(StressTerm):
    """Mean squared error of the nine components: `sum_i [sum_pq (S_ipq - s_ipq)^2 / 9] / B`."""

    def error(self, residual: Tensor) -> Tensor:
        """`r^2`."""
        return residual.square()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StressHuberLoss(StressTerm):
    """Huber loss of the nine components: `sum_i [sum_pq H(S_ipq - s_ipq) / 9] / B`.

    `H(r)` is `r^2 / 2` below `delta` and `delta (|r| - delta / 2)` above.

    Args:
        delta: Where the square ends, eV/Angstrom^3.
    """

    ignore_nonfinite: bool = True
    delta: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.label, self.delta)

    def error(self, residual: Tensor) -> Tensor:
        """`H(r)`."""
        return huber_loss(residual, delta=self.delta)
