"""One pass over held-out data: sums and counts, divided once at the end.

The result does not depend on batch size, order or padding, and nothing of training changes: not a mode, not a random number.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .core import tree
from .core.loss import Composable, ComposedLoss, Sums, as_loss, divide, warn_of_filling
from .core.ranks import Ranks
from .core.state import TrainState
from .errors import DataError
from .hooks.weight_averages import AverageState, average
from .training import Training

Evaluate = Callable[..., tuple[Any, dict[str, Sums]]]


@dataclasses.dataclass(frozen=True)
class Validation:
    """What to validate on, how, and how often.

    Args:
        data: Batches; anything that can be iterated again and again.
        every_n_steps: After every so many applied updates.
        every_n_epochs: After every so many epochs. With neither, once at the end; a final pass is made in any case.
        use_ema: Evaluate averaged parameters if the state has any.
        forward: Another forward pass than training's.
        loss: Another loss than training's.
        metrics: Objects with `empty() -> state`, `add(state, predictions, batch) -> state`, `result(state) -> {name: value}`.
        batch_callback: Called as `(*, batch, predictions, loss, batch_count, step_count, epoch)` after each batch.

    Raises:
        ValueError: If both cadences are given, or one is not positive.
        TypeError: If the data is one batch rather than several.
        DataError: If the data can be iterated only once.
    """

    data: Iterable[Any]
    every_n_steps: int | None = None
    every_n_epochs: int | None = None
    use_ema: bool = True
    forward: Callable[[Any, Any], Any] | None = None
    loss: Composable | Callable[[Any, Any], Any] | None = None
    metrics: Sequence[Any] = ()
    batch_callback: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        if self.every_n_steps is not None and self.every_n_epochs is not None:
            raise ValueError("Validation: give every_n_steps or every_n_epochs, not both")
        for name in ("every_n_steps", "every_n_epochs"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"Validation: {name} must be at least 1, got {value}")
        if isinstance(self.data, Mapping):
            raise TypeError(f"Validation: data must be several batches, got one {type(self.data).__name__}; give a list: [batch]")
        if iter(self.data) is self.data:
            raise DataError("Validation: data is an iterator, which is empty after one pass; give a list or a Loader")


def evaluate_model(training: Training, validation: Validation, evaluate: Evaluate | None = None) -> Evaluate:
    """The function that evaluates one batch: a compiled one if given, else training's own with the validation's forward and loss.

    Raises:
        ValueError: If a compiled one is given for a validation that has a forward or a loss of its own.
    """
    if evaluate is not None:
        if validation.forward is not None or validation.loss is not None:
            raise ValueError("evaluate= is training's own; it cannot stand for a Validation with another forward= or loss=")
        return evaluate
    if validation.forward is None and validation.loss is None:
        return training.evaluate
    return training.evaluator(forward=validation.forward, loss=validation.loss)


def validate(training: Training, state: TrainState, validation: Validation, evaluate: Evaluate | None = None) -> dict[str, float]:
    """Evaluate a state on all of the validation's data; on that of all ranks, where ranks share it.

    Args:
        training: Gives the forward pass and the loss.
        state: To evaluate: its averaged parameters, where it has some and the validation wants them.
        validation: The data, and what to measure; its cadence plays no part here.
        evaluate: A compiled form of `training.evaluate`, where there is one.

    Returns:
        `loss/total`, `loss/<term>/unweighted`, `loss/<term>/weight`, what the metrics give, `num_batches`, and `ema` (1 or 0: averaged
        parameters were used).

    Raises:
        DataError: If the data is empty, or none of it has a label for some term of the loss.
    """
    warn_of_filling(_loss_of(training, validation), validation.data)
    params, buffers, averaged = _parameters(state, validation)
    params = training.whole_params(params)  # every rank takes part, once, whatever the number of batches that it has
    found = training.ranks.together(lambda: _pass(training, state, validation, evaluate, params, buffers))._replace(averaged=averaged)
    found = _over_ranks(training.ranks, found, _loss_of(training, validation).names)
    if found.num_batches == 0:
        raise DataError("Validation: the data has no batches")
    summary = {**_losses(training, validation, state, found.totals), "num_batches": float(found.num_batches), "ema": float(found.averaged)}
    for metric, kept in zip(validation.metrics, found.accumulators, strict=True):
        summary |= {name: float(value) for name, value in metric.result(kept).items()}
    return summary


class _Found(NamedTuple):
    """What one pass has summed."""

    totals: dict[str, tuple[Tensor, Tensor]]  # numerator and denominator by term
    accumulators: list[Any]
    num_batches: int
    averaged: bool = False


def _pass(training: Training, state: TrainState, validation: Validation, evaluate: Evaluate | None, params: Any, buffers: Any) -> _Found:
    """Sum over the batches that this process has."""
    run = evaluate_model(training, validation, evaluate)
    totals: dict[str, tuple[Tensor, Tensor]] = {}
    accumulators = [metric.empty() for metric in validation.metrics]
    device = tree.leaves(state.params)[0].device
    num_batches = 0
    for batch in validation.data:
        batch = tree.to_device(batch, device)
        predictions, sums = run(state, batch, params=params, buffers=buffers)
        totals = {name: _add(totals.get(name), part) for name, part in sums.items()}
        accumulators = [metric.add(kept, predictions, batch) for metric, kept in zip(validation.metrics, accumulators, strict=True)]
        if validation.batch_callback is not None:
            _call_back(validation.batch_callback, training, state, batch, predictions, sums, num_batches)
        num_batches += 1
    return _Found(totals, accumulators, num_batches)


def _over_ranks(ranks: Ranks, found: _Found, names: Sequence[str]) -> _Found:
    """The sums of all ranks; one that had no batch adds zeros."""
    if ranks.world_size == 1:
        return found
    nothing = torch.zeros((), dtype=torch.float64)
    pairs = [found.totals.get(name, (nothing, nothing)) for name in names]
    flat = ranks.sum(torch.stack([*(x.cpu() for pair in pairs for x in pair), nothing + found.num_batches]))
    totals = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(names)}
    accumulators = tree.map(lambda kept: ranks.sum(kept.cpu().reshape(-1)).view(kept.shape), found.accumulators)
    return _Found(totals, accumulators, int(flat[-1]), found.averaged)


def _loss_of(training: Training, validation: Validation) -> ComposedLoss:
    return training.loss if validation.loss is None else as_loss(validation.loss)


def _parameters(state: TrainState, validation: Validation) -> tuple[Any, Any, bool]:
    name = next((name for name, kept in state.hook_state.items() if isinstance(kept, AverageState)), None)
    if not validation.use_ema or name is None:
        return state.params, state.buffers, False
    return *average(state, name), True


def _add(total: tuple[Tensor, Tensor] | None, part: Sums) -> tuple[Tensor, Tensor]:
    new = (part.numerator.to(torch.float64), part.denominator.to(torch.float64))
    return new if total is None else (total[0] + new[0], total[1] + new[1])


def _losses(training: Training, validation: Validation, state: TrainState, totals: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    weights, _ = _loss_of(training, validation).weights(state.counters.step_count, state.counters.epoch_count)
    if empty := [name for name, (_, denominator) in totals.items() if float(denominator) == 0.0]:
        raise DataError(
            f"Validation: none of the data has a label for the loss term {', '.join(empty)}, so its mean would be a perfect 0; "
            "check the keys of the data, or give the validation a loss without it"
        )
    means = {name: divide(*pair) for name, pair in totals.items()}
    summary = {"loss/total": float(sum(weights[name] * mean for name, mean in means.items()))}
    for name, mean in means.items():
        summary |= {f"loss/{name}/unweighted": float(mean), f"loss/{name}/weight": float(weights[name])}
    return summary


def _call_back(
    callback: Callable[..., None], training: Training, state: TrainState, batch: Any, predictions: Any, sums: Mapping[str, Sums], index: int
) -> None:
    callback(
        batch=batch,
        predictions=predictions,
        loss=sums,
        batch_count=index,
        step_count=int(state.counters.step_count),
        epoch=int(state.counters.epoch_count),
    )
