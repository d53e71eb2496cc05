"""The learning-rate range test: train at rates that grow from batch to batch, and see where the loss falls fastest and where it blows up.

A training is a pure function of a state, so the test works on states of its own and nothing has to be put back afterwards.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .preparing import batch_at

if TYPE_CHECKING:
    from ..core.state import TrainState
    from ..spec.envelope import Spec
    from ..spec.families import Model

_MEMORY = 0.9  # of the running mean of the loss, per batch
_BLOWN_UP = 4.0  # a mean loss of so many times the least one ends the test
_FALL = 0.02  # share by which the mean loss has to fall, or nothing is suggested

CEILING = 2.0
"""Above so many times the first loss nothing is worth showing."""


class RangeTest(NamedTuple):
    """What was measured."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """The loss of each batch, before its update."""
    means: tuple[float, ...]
    """Their running mean, corrected for its beginning."""
    stopped: str
    """Why no larger rate was tried."""


class Suggestion(NamedTuple):
    """What a range test says about the learning rate."""

    steepest: float
    """Where the mean loss falls fastest, per decade of the rate."""
    least: float
    """Where the mean loss is least; a rate that large is at the edge of what the training bears."""


def with_rate(spec: "Spec", rate: float) -> tuple["Spec", tuple[float, ...]]:
    """The spec with this number in the place of every learning rate and schedule, and the different ones that it had.

    A schedule counts as NaN, once.
    """
    strategy = spec.strategy
    found: list[float] = []
    schedule = None if strategy.schedule is None else _noted(strategy.schedule, rate, found)
    update = tuple(_replaced(part, rate, found) for part in strategy.update)
    changed = strategy.model_copy(update={"update": update, "schedule": schedule})
    return spec.model_copy(update={"strategy": changed}), tuple(dict.fromkeys(found))


def _replaced(part: Any, rate: float, found: list[float]) -> Any:
    from pydantic import BaseModel

    if isinstance(part, tuple):
        return tuple(_replaced(item, rate, found) for item in part)
    if isinstance(part, dict):
        return {key: _replaced(item, rate, found) for key, item in part.items()}
    if not isinstance(part, BaseModel):
        return part
    changes = {}
    for name, info in type(part).model_fields.items():
        own = getattr(part, name)
        is_rate = (info.alias or name) == "learning_rate" and own is not None
        changes[name] = _noted(own, rate, found) if is_rate else _replaced(own, rate, found)
    return part.model_copy(update=changes)


def _noted(own: "float | Model", rate: float, found: list[float]) -> float:
    found.append(float(own) if isinstance(own, int | float) else math.nan)
    return rate


def run_range_test(
    step: Callable[..., Any], end_epoch: Callable[..., Any], batches: Any, state: "TrainState", rates: Sequence[float]
) -> RangeTest:
    """Train one batch at each rate, in the order given.

    Args:
        step: `step(state, batch) -> (state, metrics)`.
        end_epoch: What a training does to its state at the end of an epoch.
        batches: A `Loader`.
        state: Where to begin; stays as it is. Its learning rates are numbers and not schedules.
        rates: Ascending.

    Reference:
        Smith, "Cyclical Learning Rates for Training Neural Networks", 2017, section 3.3. arXiv:1506.01186. There the rate grows linearly
        and accuracy is watched.
    """
    from ..core.transform import set_hyperparams

    losses: list[float] = []
    means: list[float] = []
    mean, stopped = 0.0, "the last rate was reached"
    for number, rate in enumerate(rates):
        if number and number % len(batches) == 0:
            state = end_epoch(state)
        state = dataclasses.replace(state, opt_state=set_hyperparams(state.opt_state, learning_rate=rate))
        state, metrics = step(state, batch_at(batches, number, state))
        loss = float(metrics["loss/total"])
        if not math.isfinite(loss):
            stopped = f"the loss is not finite{_after(rates, number)}"
            break
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        losses.append(loss)
        means.append(mean / (1 - _MEMORY ** (number + 1)))
        if means[-1] > _BLOWN_UP * min(means):
            stopped = f"the loss has grown to {_BLOWN_UP:g} times its least value{_after(rates, number)}"
            break
    return RangeTest(tuple(rates[: len(losses)]), tuple(losses), tuple(means), stopped)


def _after(rates: Sequence[float], number: int) -> str:
    """Which update has made the loss of a batch what it is: the one before."""
    return f" after an update at {rates[number - 1]:.3g}" if number else " at the very first batch"


def suggest(test: RangeTest) -> Suggestion | None:
    """Read a range test; None if the mean loss did not fall, so that it says nothing.

    The slope at a rate is that of a straight line through the losses around it, so that single batches do not decide.
    """
    means, losses, decades = np.array(test.means), np.array(test.losses), np.log10(test.rates)
    half = max(2, len(means) // 10)
    least = int(means.argmin()) if len(means) else 0
    if least <= 2 * half or means[least] > (1 - _FALL) * means[: least + 1].max():
        return None
    centres = range(half, least - half + 1)
    slopes = [float(np.polyfit(decades[at - half : at + half + 1], losses[at - half : at + half + 1], 1)[0]) for at in centres]
    return Suggestion(test.rates[centres[int(np.argmin(slopes))]], test.rates[least])
