"""A prediction and its target brought together: dtypes agreed, shapes compared, unlabelled places made harmless.

What is then done with the difference is up to the terms.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import LossError

DTypePolicy = Literal["strict", "prediction_to_target", "target_to_prediction"]
"""What to do where dtypes differ: refuse, or convert one to the other before anything else."""


def check_dtype_policy(name: str, policy: str) -> None:
    """Raise unless the policy is known."""
    if policy not in get_args(DTypePolicy):
        raise LossError(f"{name}: unknown dtype_policy {policy!r} (known: {', '.join(get_args(DTypePolicy))})")


def check_delta(name: str, delta: float) -> None:
    """Raise unless the threshold of a Huber loss is a positive, finite number."""
    if not 0 < delta < float("inf"):
        raise LossError(f"{name}: delta must be positive and finite, got {delta}")


def pair(name: str, prediction: Any, target: Any, policy: DTypePolicy) -> tuple[Tensor, Tensor]:
    """Agree on a dtype, then insist on equal shapes; both come back in float32 or wider.

    Raises:
        LossError: If dtypes differ under `"strict"`, or shapes differ at all; nothing is broadcast.
    """
    for value, what in ((prediction, "prediction"), (target, "target")):
        check_tensor(name, value, what)
    if prediction.dtype != target.dtype:
        prediction, target = _agree(name, prediction, target, policy)
    if prediction.shape != target.shape:
        raise LossError(
            f"{name}: prediction {tuple(prediction.shape)} and target {tuple(target.shape)} must have one shape, "
            f"since nothing is broadcast; {_advice(prediction, target)}"
        )
    return widen(prediction), widen(target)


def check_tensor(name: str, value: Any, what: str) -> None:
    """Raise unless the value is a tensor."""
    if not isinstance(value, Tensor):
        raise LossError(f"{name}: the {what} must be a tensor, got {type(value).__name__}")


def _agree(name: str, prediction: Tensor, target: Tensor, policy: DTypePolicy) -> tuple[Tensor, Tensor]:
    if policy == "strict":
        raise LossError(
            f"{name}: prediction is {prediction.dtype} and target is {target.dtype}; give dtype_policy='prediction_to_target' or "
            "'target_to_prediction' to convert one of them"
        )
    return (prediction.to(target.dtype), target) if policy == "prediction_to_target" else (prediction, target.to(prediction.dtype))


def _advice(prediction: Tensor, target: Tensor) -> str:
    if prediction.numel() != target.numel():
        return "are both of the same batch?"
    return f"reshape the prediction to {tuple(target.shape)} in forward"


def widen(values: Tensor) -> Tensor:
    """The values in float32 or wider, so that no sum is taken in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def labelled(target: Tensor, mask: Tensor | None, ignore_nonfinite: bool) -> Tensor:
    """Where an entry counts: inside the mask, and finite if others are to be ignored.

    Args:
        mask: Of the shape of the first axes of the target; None for all.
    """
    valid = torch.isfinite(target) if ignore_nonfinite else torch.ones_like(target, dtype=torch.bool)
    return valid if mask is None else valid & expand_mask(mask, target)


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask over the first axes, over all axes."""
    return mask.reshape(*mask.shape, *(1,) * (like.ndim - mask.ndim)).expand(like.shape)


def difference(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """`prediction - target`; 0 with a zero gradient where not valid, whatever stands there.

    It is replaced before anything is made of it: a NaN that is masked only afterwards comes back in the gradient as 0 * NaN.
    """
    return replace(prediction - target, valid)


def replace(values: Tensor, valid: Tensor) -> Tensor:
    """The values, 0 where not valid."""
    return torch.where(valid, values, torch.zeros_like(values))
