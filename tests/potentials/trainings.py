"""A training of any potential whose loss is a function of model and batch, as one step that is captured."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

import purestep as ps


def make_training(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> ps.Training:
    """The model as it comes, clipping and AdamW."""
    return ps.Training(
        model,
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": loss(model, batch)},
        optimizer=ps.chain(ps.clip_by_global_norm(10.0), ps.adamw(1e-3)),
    )


def run(step: Callable[..., Any], training: ps.Training, batches: list[Any]) -> Any:
    """State and metrics after these batches."""
    state, metrics = training.init(), {}
    for batch in batches:
        state, metrics = step(state, batch)
    return state, metrics
