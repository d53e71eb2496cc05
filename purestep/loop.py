"""The loop: the one `for` over batches, the events that listeners hear, and the rule by which a run ends.

Everything that learns is in the step; the loop only feeds it, counts on the host what it need not ask the device for, and tells
listeners. At one point of a run the order is: step, validation (plateau transforms hear of it), AFTER_VALIDATION, then the other
listeners, checkpoints among them, so that nothing is lost on resuming.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from .core import tree
from .core.epoch import observe, observes
from .core.event import Event, Listener, Stop, crossed
from .core.hook import Stage
from .core.ranks import Ranks
from .core.state import TrainState
from .core.step import Step, form_at
from .errors import DataError, StallError
from .training import Training
from .validation import Evaluate, Validation, validate

_PATIENCE = 3  # epochs without a single applied update before a run counts as stalled


class FitResult(NamedTuple):
    """What a run leaves."""

    state: TrainState
    history: list[dict[str, float]]
    """One record an epoch and a validation: counters, the latest metrics of training, `validation/...`."""
    stop_reason: str


@dataclasses.dataclass(frozen=True)
class _Moment:
    """Where a run stands. The counters are what the host knows without asking the device."""

    state: TrainState
    batch_count: int
    epoch_count: int
    epoch_step_count: int
    step_count: int  # when the device was last asked,
    asked_at: int  # at this batch_count
    history: tuple[dict[str, float], ...] = ()
    metrics: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    summary: Mapping[str, float] | None = None  # of the validation at this very point
    validated_at: int = -1  # batch_count of the latest validation
    stop: Stop | None = None

    @property
    def step_bound(self) -> int:
        """No more updates than this can have been applied."""
        return self.step_count + self.batch_count - self.asked_at

    def replace(self, **changes: Any) -> "_Moment":
        return dataclasses.replace(self, **changes)

    def looked(self) -> "_Moment":
        """The same, after asking the device."""
        return self.replace(**_counters(self.state))


def _counters(state: TrainState) -> dict[str, Any]:
    names = ("batch_count", "epoch_count", "epoch_step_count", "step_count")
    counts: dict[str, Any] = {name: int(getattr(state.counters, name)) for name in names}
    return {**counts, "asked_at": counts["batch_count"]}


def fit(
    training: Training,
    batches: Iterable[Any],
    *,
    state: TrainState | None = None,
    num_epochs: int | None = None,
    num_steps: int | None = None,
    validation: Validation | None = None,
    listeners: Sequence[Listener] = (),
    seed: int = 0,
    step: Step | None = None,
    evaluate: Evaluate | None = None,
) -> FitResult:
    """Train until a number of epochs or of applied updates is reached.

    A state that has been trained continues where it stands: in the middle of an epoch at the next batch. A state that has reached the
    target comes back as it is.

    Args:
        training: Gives `init`, `step` and `evaluate`.
        batches: A `Loader` (any object with `epoch(number, start)`), a list, or another iterable that yields an epoch of batches each time
            it is iterated.
        state: Where to start; by default `training.init(seed)`.
        num_epochs: Stop when so many passes over the data are complete, counted from the beginning of training.
        num_steps: Stop when so many updates have been applied, counted likewise.
        validation: What to validate on, and how often.
        listeners: Called with every event, in order; one that returns `Stop` ends the run at that point. Where ranks share the batches,
            those of rank 0, and on the others those that have a true attribute `on_every_rank`; what one asks, or raises, holds for all.
        seed: Of a new state.
        step: A compiled `training.step`.
        evaluate: A compiled `training.evaluate`.

    Raises:
        ValueError: If not exactly one target is given, or it is not positive.
        DataError: If there are no batches, or they cannot be iterated again.
        StallError: If no update was applied over several epochs, or a gate asks to halt.
        DistributedError: If ranks begin with different states, or one of them fails.
    """
    run = _Run(training, batches, _target(num_epochs, num_steps), validation, tuple(listeners), step or training.step, evaluate)
    start = training.init(seed) if state is None else state
    if training.ranks.world_size > 1:
        from .distributed.checks import compare_states  # loads torch.distributed, which one process does not need

        compare_states(start, training.ranks, "fit: the first state")
    end = run.fit(_Moment(start, **_counters(start)))
    assert end.stop is not None
    return FitResult(end.state, list(end.history), end.stop.reason)


def _target(num_epochs: int | None, num_steps: int | None) -> dict[str, int]:
    given = {name: value for name, value in (("num_epochs", num_epochs), ("num_steps", num_steps)) if value is not None}
    if len(given) != 1:
        raise ValueError(f"fit: give exactly one of num_epochs and num_steps, got {given or 'neither'}")
    (name, value), *_ = given.items()
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"fit: {name} must be a whole number of at least 1, got {value!r}")
    return given


@dataclasses.dataclass(frozen=True)
class _Run:
    """The fixed parts of one call of `fit`; everything that changes is a `_Moment`, passed along."""

    training: Training
    batches: Any
    target: dict[str, int]
    validation: Validation | None
    listeners: tuple[Listener, ...]
    step: Step
    evaluate: Evaluate | None

    def fit(self, now: _Moment) -> _Moment:
        now = self.tell(Stage.SETUP, now)
        if self.reached(now):
            return now.replace(stop=Stop(next(iter(self.target))))
        now = self.tell(Stage.BEFORE_TRAINING, now)
        idle_epochs = 0
        while now.stop is None:
            applied_before = now.step_count
            now = self.epoch(now).looked()
            idle_epochs = idle_epochs + 1 if now.step_count == applied_before else 0
            if now.stop is None and idle_epochs >= _PATIENCE:
                raise StallError(
                    f"no update was applied in {idle_epochs} epochs ({now.batch_count} batches so far): every batch is vetoed by a gate "
                    "(non-finite values, spikes), or the accumulation window is longer than that; the metrics of the gates say which"
                )
        if self.validation is not None and now.validated_at != now.batch_count:
            # at no cadence, so plateau transforms do not hear of it: a run in pieces equals one in a piece
            now = self.tell(Stage.AFTER_VALIDATION, self.validate(now))
        return self.tell(Stage.AFTER_TRAINING, now)

    def epoch(self, now: _Moment) -> _Moment:
        """One pass over the rest of the data, up to the target."""
        device = tree.leaves(now.state.params)[0].device
        if now.epoch_step_count == 0:
            now = self.tell(Stage.BEFORE_EPOCH, now)
        rest = _rest_of_epoch(self.batches, now.epoch_count, now.epoch_step_count) if now.stop is None else iter(())
        for batch in _in_step(self.training.ranks, rest):
            now = self.one_batch(now, tree.to_device(batch, device, non_blocking=True))
            if now.stop is not None:
                break
        if now.epoch_step_count == 0 and now.stop is None:
            raise DataError("fit: the data has no batches; is the set empty, or an iterator that was used up?")
        complete = now.stop is None or now.epoch_step_count == _size(self.batches)
        return self.close_epoch(now) if complete else now

    def one_batch(self, now: _Moment, batch: Any) -> _Moment:
        state, metrics = form_at(self.step, now.state)(now.state, batch)
        before = now.step_count
        now = now.replace(
            state=state, metrics=metrics, summary=None, batch_count=now.batch_count + 1, epoch_step_count=now.epoch_step_count + 1
        )
        if self.due(now):
            now = now.looked()
            _check_halt(metrics)
            if self.validation is not None and crossed(self.validation.every_n_steps, before, now.step_count):
                now = self.observe(self.validate(now))
        now = self.tell(Stage.AFTER_BATCH, now, batch)
        steps_reached = "num_steps" in self.target and self.reached(now)
        return now.replace(stop=Stop("num_steps")) if now.stop is None and steps_reached else now

    def close_epoch(self, now: _Moment) -> _Moment:
        before = now.looked().step_count
        now = now.replace(state=self.training.end_epoch(now.state), summary=None).looked()
        _check_halt(now.metrics)
        if (v := self.validation) is not None and (
            crossed(v.every_n_epochs, now.epoch_count - 1, now.epoch_count) or crossed(v.every_n_steps, before, now.step_count)
        ):
            now = self.observe(self.validate(now))
        now = self.tell(Stage.AFTER_EPOCH, now.replace(history=(*now.history, _record(now, {}))))
        return now.replace(stop=Stop(next(iter(self.target)))) if now.stop is None and self.reached(now) else now

    def validate(self, now: _Moment) -> _Moment:
        assert self.validation is not None
        summary = validate(self.training, now.state, self.validation, self.evaluate)
        return now.replace(summary=summary, validated_at=now.batch_count, history=(*now.history, _record(now, summary)))

    def observe(self, now: _Moment) -> _Moment:
        """Hand the validated loss to plateau transforms, then to the listeners."""
        assert now.summary is not None
        state = observe(now.state, now.summary["loss/total"]) if observes(now.state) else now.state
        return self.tell(Stage.AFTER_VALIDATION, now.replace(state=state))

    def due(self, now: _Moment) -> bool:
        """Whether enough updates may have been applied for something to happen; only then is the device asked."""
        every = self.validation.every_n_steps if self.validation is not None else None
        end = self.target.get("num_steps")
        return crossed(every, now.step_count, now.step_bound) or (end is not None and now.step_bound >= end)

    def reached(self, now: _Moment) -> bool:
        if (epochs := self.target.get("num_epochs")) is not None:
            return now.epoch_count >= epochs
        return now.step_count >= self.target["num_steps"]

    def tell(self, stage: Stage, now: _Moment, batch: Any = None) -> _Moment:
        """Let all listeners hear of this moment; the first wish to stop stands."""
        event = Event(
            stage=stage,
            state=now.state,
            batch_count=now.batch_count,
            epoch_count=now.epoch_count,
            epoch_step_count=now.epoch_step_count,
            step_bound=now.step_bound,
            metrics=now.metrics,
            validation=now.summary,
            num_batches=_size(self.batches),
            target=self.target,
            batch=batch,
        )
        reason = _ask_together(self.training.ranks, self.listeners, event)
        return now if now.stop is not None or reason is None else now.replace(stop=Stop(reason))


def _ask_together(ranks: Ranks, listeners: Sequence[Listener], event: Event) -> str | None:
    """Why the run should end here, if a listener of any rank wants it to; the same answer, or an error, on every rank."""
    heard = [listener for listener in listeners if ranks.rank == 0 or getattr(listener, "on_every_rank", False)]
    try:
        answers = [listener(event) for listener in heard]
    except Exception as error:
        ranks.settle(error=error)
        raise
    return ranks.settle(next((answer.reason for answer in answers if isinstance(answer, Stop)), None))


def _in_step(ranks: Ranks, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches as long as every rank has one; an error in reading is one of all ranks."""
    if ranks.world_size == 1:
        yield from batches
        return
    end = object()
    while True:
        try:
            batch = next(batches, end)
        except Exception as error:
            ranks.settle(error=error)
            raise
        if ranks.settle("end" if batch is end else None) is not None:
            if batch is not end:
                warnings.warn(f"the data of another rank has ended, so rank {ranks.rank} leaves the rest of its own", stacklevel=2)
            return
        yield batch


def _size(batches: Any) -> int | None:
    return len(batches) if hasattr(batches, "__len__") else None


def _rest_of_epoch(batches: Any, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from number `start` on; only a plain iterable has to be read up to there."""
    if hasattr(batches, "epoch"):
        return iter(batches.epoch(epoch, start))
    if isinstance(batches, Sequence):
        return iter(batches[start:])
    return itertools.islice(batches, start, None)


def _check_halt(metrics: Mapping[str, Tensor]) -> None:
    for name, value in metrics.items():
        if name.endswith("/halt") and bool(value):
            raise StallError(f"{name.removesuffix('/halt')} asks to stop: too many rejected batches in a row; its metrics say why")


def _record(now: _Moment, summary: Mapping[str, float]) -> dict[str, float]:
    counters = {name: float(getattr(now, name)) for name in ("batch_count", "step_count", "epoch_count")}
    train = {name: float(value) for name, value in now.metrics.items() if value.numel() == 1}
    return {**counters, **train, **{f"validation/{name}": value for name, value in summary.items()}}
