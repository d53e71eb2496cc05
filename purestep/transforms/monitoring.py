"""Transforms that only look: they hand the updates on and report measurements among the step's metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from .moments import bias_correction

Measure = Callable[[Tree], Tensor]


@tree.node
class MonitorState:
    """State of `monitor`: the latest measurements by name, and what measures with a memory remember."""

    metrics: dict[str, Tensor]
    memory: dict[str, Any]


class EmaOfMeasure:
    """A measure averaged over time; made by `measure_with_ema`."""

    def __init__(self, measure: Measure, decay: float, debias: bool, accumulator_dtype: torch.dtype):
        self.measure, self.decay, self.debias, self.dtype = measure, decay, debias, accumulator_dtype


def snapshot(measure_name: str, measure: Measure) -> GradientTransform:
    """Report `measure(updates)` as a metric of this name; `monitor` with one measure.

    Args:
        measure_name: The metric's name; one with a slash is the whole name.
        measure: `fn(updates) -> tensor`.

    Reference:
        optax 0.2.8 `snapshot`.
    """
    return monitor({measure_name: measure})._replace(name="snapshot")


def monitor(measures: Mapping[str, Measure | EmaOfMeasure]) -> GradientTransform:
    """Report measurements of the updates at this place in the chain.

    Args:
        measures: `{name: measure}`; a measure is `fn(updates) -> tensor`, or comes from `measure_with_ema`. A name with a slash is the
            metric's whole name, any other comes after that of the chain.

    Reference:
        optax 0.2.8 `monitor`.
    """

    def init(params: Tree) -> MonitorState:
        memory = {}
        for name, measure in measures.items():
            if isinstance(measure, EmaOfMeasure):
                memory[name] = (scalar_like(params, 0, torch.int64), torch.zeros_like(measure.measure(params), dtype=measure.dtype))
        shapes = {name: _plain(measure)(params) for name, measure in measures.items()}
        return MonitorState({name: torch.full_like(value, float("nan"), dtype=torch.float64) for name, value in shapes.items()}, memory)

    def update(updates: Tree, state: MonitorState, params: Tree = None, **extra: Any) -> tuple[Tree, MonitorState]:
        found, memory = {}, {}
        for name, measure in measures.items():
            value = _plain(measure)(updates)
            if isinstance(measure, EmaOfMeasure):
                count, mean = state.memory[name]
                count, mean = count + 1, (measure.decay * mean + (1 - measure.decay) * value).to(measure.dtype)
                memory[name] = (count, mean)
                value = mean / bias_correction(measure.decay, count) if measure.debias else mean
            found[name] = value.to(torch.float64)
        return updates, MonitorState(found, memory)

    return GradientTransform(init, update, "monitor")


def measure_with_ema(measure: Measure, decay: float, debias: bool = True, accumulator_dtype: torch.dtype | None = None) -> EmaOfMeasure:
    """Average a measure over time: `m <- decay m + (1 - decay) measure(updates)`, for use in `monitor`.

    Args:
        measure: `fn(updates) -> tensor`.
        decay: In [0, 1).
        debias: Divide by `1 - decay^t`.
        accumulator_dtype: Storage of the mean; float64 by default.
    """
    check_numbers("measure_with_ema", DECAY, decay=decay)
    return EmaOfMeasure(measure, decay, debias, accumulator_dtype or torch.float64)


def _plain(measure: Measure | EmaOfMeasure) -> Measure:
    return measure.measure if isinstance(measure, EmaOfMeasure) else measure
