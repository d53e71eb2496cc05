"""Listeners that end a run: no more improvement, a metric that is good enough, time, a fixed amount of compute, lost parameters.

What they remember is not part of the state. One that goes on after a resume is given the past: `EarlyStopping(past=...)`,
`StopAfterSamples(done=...)`; the others know it from the counters, or begin anew with each process.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.event import Event, Stop
from ..core.hook import Stage
from ..core.state import TrainState
from ..errors import StallError
from ..reporting.meter import num_samples

Mode = Literal["min", "max"]


def is_better(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Whether a value beats the best one by more than `min_delta`; NaN beats nothing.

    Example:
        >>> is_better(0.9, 1.0, "min"), is_better(0.9, 1.0, "min", min_delta=0.2), is_better(float("nan"), None, "min")
        (True, False, False)
    """
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


def _check_mode(mode: Any) -> None:
    if mode not in ("min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")


def _validated(event: Event, metric: str) -> float | None:
    """The metric of the validation that this event is about; None for other events."""
    if event.stage is not Stage.AFTER_VALIDATION or event.validation is None or event.error is not None:
        return None
    name = metric.removeprefix("validation/")
    if name not in event.validation:
        raise ValueError(f"no metric {metric!r} in the validation; it has {', '.join(sorted(event.validation))}")
    return float(event.validation[name])


class EarlyStopping:
    """Ask for the end when `patience` validations in a row brought nothing better: `Stop("early_stopping")`.

    Args:
        metric: Of validation.
        patience: At least 1.
        min_delta: Least improvement that counts, in the units of the metric.
        mode: Whether small or large is good.
        past: Values of earlier validations, for a run that resumes; without the final pass of a run that ended, which it makes anew.
    """

    def __init__(
        self, metric: str = "loss/total", *, patience: int, min_delta: float = 0.0, mode: Mode = "min", past: Iterable[float] = ()
    ):
        _check_mode(mode)
        if patience < 1 or min_delta < 0:
            raise ValueError(f"patience must be at least 1 and min_delta at least 0, got {patience} and {min_delta}")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self.best: float | None = None
        self.waited = 0
        """Validations since the best one."""
        for value in past:
            self._note(value)

    def __call__(self, event: Event) -> Stop | None:
        """Compare a validation with the best one."""
        value = _validated(event, self.metric)
        if value is None or event.stop_reason is not None:  # a run that goes on from its end never made that validation
            return None
        self._note(value)
        return Stop("early_stopping") if self.waited >= self.patience else None

    def _note(self, value: float) -> None:
        if is_better(value, self.best, self.mode, self.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1


class StopAtMetric:
    """Ask for the end when a metric of validation is good enough: `Stop("target_metric")`.

    Args:
        metric: Of validation.
        target: At least as good as this.
        mode: Whether small or large is good.
    """

    def __init__(self, metric: str, target: float, *, mode: Mode = "min"):
        _check_mode(mode)
        self.metric, self.target, self.mode = metric, target, mode

    def __call__(self, event: Event) -> Stop | None:
        """Compare a validation with the target."""
        value = _validated(event, self.metric)
        if value is None:
            return None
        return Stop("target_metric") if (value <= self.target if self.mode == "min" else value >= self.target) else None


class BestTracker:
    """Keep the best validation: its value, its place, and with `keep_state` a copy of the state on the CPU.

    Args:
        metric: Of validation.
        mode: Whether small or large is good.
        keep_state: Copy each state that is the best so far.
    """

    def __init__(self, metric: str = "loss/total", *, mode: Mode = "min", keep_state: bool = False):
        _check_mode(mode)
        self.metric, self.mode, self.keep_state = metric, mode, keep_state
        self.value: float | None = None
        self.batch_count: int | None = None
        self.state: TrainState | None = None

    def __call__(self, event: Event) -> None:
        """Keep what is better than everything before."""
        value = _validated(event, self.metric)
        if value is not None and is_better(value, self.value, self.mode):
            self.value, self.batch_count = value, event.batch_count
            self.state = tree.map(_on_cpu, event.state) if self.keep_state else None


def _on_cpu(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


class StopAtTime:
    """Ask for the end after the first batch that is over so many seconds from now: `Stop("time")`.

    Args:
        seconds: From the construction on.
        reason: What to call it.
        clock: Seconds that never go back.
    """

    def __init__(self, seconds: float, *, reason: str = "time", clock: Callable[[], float] = time.monotonic):
        self.seconds, self.reason, self._clock = seconds, reason, clock
        self._end = clock() + seconds

    def __call__(self, event: Event) -> Stop | None:
        """Look at the clock after each batch."""
        return Stop(self.reason) if event.stage is Stage.AFTER_BATCH and self._clock() >= self._end else None


class StopAfterGlobalSteps:
    """Ask for the end when `global_step_count` reaches a number: `Stop("global_steps")`.

    The device is asked only when so many updates may have been applied.

    Args:
        num_global_steps: Updates times ranks, counted from the beginning of training.
        world_size: Ranks that share a batch.
    """

    def __init__(self, num_global_steps: int, *, world_size: int = 1):
        self.num_global_steps, self.world_size = num_global_steps, world_size
        self._known = (0, 0)  # global_step_count at batch_count, when last asked

    def __call__(self, event: Event) -> Stop | None:
        """Count after each batch and epoch."""
        if event.stage is Stage.BEFORE_TRAINING:
            self._ask(event)
        if event.stage not in (Stage.BEFORE_TRAINING, Stage.AFTER_BATCH, Stage.AFTER_EPOCH):
            return None
        steps, batches = self._known
        # the end of an epoch may add the update of an open window
        bound = steps + (event.batch_count - batches + (event.stage is Stage.AFTER_EPOCH)) * self.world_size
        return Stop("global_steps") if bound >= self.num_global_steps and self._ask(event) >= self.num_global_steps else None

    def _ask(self, event: Event) -> int:
        self._known = (int(event.state.counters.global_step_count), event.batch_count)
        return self._known[0]


class StopAfterSamples:
    """Ask for the end when so many samples have been through: `Stop("samples")`.

    Args:
        num_samples: Of this process, vetoed batches included.
        done: Samples that an earlier part of the run has seen.
        count_samples: Samples of a batch, from what the host knows of it.
    """

    def __init__(self, num_samples: int, *, done: int = 0, count_samples: Callable[[Any], int] = num_samples):
        self.num_samples, self.done, self._count = num_samples, done, count_samples

    def __call__(self, event: Event) -> Stop | None:
        """Count after each batch."""
        if event.stage is not Stage.AFTER_BATCH:
            return None
        self.done += self._count(event.batch)
        return Stop("samples") if self.done >= self.num_samples else None


class RefuseNonfinite:
    """End the run with an error once parameters are NaN or infinite: nothing can be learnt from there on.

    A chain with `skip_nonfinite` never comes there. Parameters are looked at only where the loss of a report is not finite, and a batch
    whose update a gate has vetoed does no harm.

    Args:
        every_n_batches: How often to look; the device is waited for then.

    Raises:
        StallError: At the event, naming the first such leaf.
    """

    def __init__(self, every_n_batches: int = 10):
        if every_n_batches < 1:
            raise ValueError(f"every_n_batches must be at least 1, got {every_n_batches}")
        self.every_n_batches = every_n_batches

    def __call__(self, event: Event) -> None:
        """Look at the loss of a batch, and at the parameters if it is odd."""
        due = event.stage is Stage.AFTER_TRAINING or (event.stage is Stage.AFTER_BATCH and event.batch_count % self.every_n_batches == 0)
        loss = event.metrics.get("loss/total")
        if not due or loss is None or math.isfinite(float(loss)):
            return
        for path, leaf in tree.items(event.state.params):
            if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
                raise StallError(
                    f"after batch {event.batch_count} the loss is {float(loss)} and params.{path} is not finite, so nothing is learnt any "
                    "more; a smaller learning rate, clipping, or skip_nonfinite() as the first part of the chain keep parameters finite"
                )
