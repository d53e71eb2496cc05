"""The one `for` over batches, the events that listeners hear, and the rule by which a run ends.

Everything that learns is in the step; the loop only feeds it, counts on the host what it need not ask the device for, and tells
listeners. At one point of a run the order is: step, validation (plateau transforms hear of it), AFTER_VALIDATION, then the other
listeners, checkpoints among them, so that nothing is lost on resuming. A run that comes to its target is validated there at the latest,
before its last checkpoint.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..core.epoch import observe, observes
from ..core.event import Event, Listener, Stop, crossed, is_preemption
from ..core.hook import Stage
from ..core.loss import warn_of_filling
from ..core.state import TrainState, check_not_consumed
from ..core.step import Step, form_at
from ..errors import ConsumedStateError, DataError, StallError
from ..reporting.scalars import read_scalars
from ..training import Training
from ..validation import Evaluate, Validation, validate
from .feeding import check_batches, in_step, no_batches_text, rest_of_epoch, size_of
from .listening import OnListenerError, Span, ask_together, check_listeners, tell_of_error
from .moment import Moment, Target, first_moment, parse_target
from .stopping import StopAtTime

_PATIENCE = 3  # epochs without a single applied update before a run counts as stalled,
_PATIENCE_BATCHES = 10_000  # or batches, where epochs are long or have no end


class FitResult(NamedTuple):
    """What a run leaves."""

    state: TrainState
    history: list[dict[str, float]]
    """One record an epoch and a validation: counters, the latest metrics of training, `validation/...`."""
    stop_reason: str


def fit(
    training: Training,
    batches: Iterable[Any],
    *,
    state: TrainState | None = None,
    num_epochs: int | None = None,
    num_steps: int | None = None,
    num_batches: int | None = None,
    time_budget: float | None = None,
    validation: Validation | None = None,
    listeners: Sequence[Listener] = (),
    on_listener_error: OnListenerError = "raise",
    seed: int = 0,
    step: Step | None = None,
    evaluate: Evaluate | None = None,
    span: Span = contextlib.nullcontext,
) -> FitResult:
    """Train until a number of epochs, applied updates or batches is reached, or a time has passed.

    A state that has been trained continues where it stands: in the middle of an epoch at the next batch. A state that has reached the
    target comes back as it is. An epoch is one pass over `batches`, however many updates its batches make.

    Args:
        training: Gives `init`, `step` and `evaluate`.
        batches: A `Loader` (any object with `epoch(number, start)`), a list, or another iterable that yields an epoch of batches each time
            it is iterated. Each batch is moved to the device of the state.
        state: Where to start; by default `training.init(seed)`.
        num_epochs: Stop when so many passes over the data are complete, counted from the beginning of training.
        num_steps: Stop when so many updates have been applied, counted likewise.
        num_batches: Stop when so many batches have been through, counted likewise.
        time_budget: Stop after the first batch that ends so many seconds after this call, alone or beside one of the counts.
        validation: What to validate on, and how often.
        listeners: Called with every event (`ps.Event` says which), in order; one that returns `Stop` ends the run at that point. Where
            ranks share the batches, those of rank 0, and on the others those that have a true attribute `on_every_rank`; what one asks,
            or raises, holds for all. Those with a true attribute `hears_errors` are also told of an exception that ends the run, see
            `Event.error`; where ranks share the batches, if they have `on_every_rank` too.
        on_listener_error: What an exception in a listener does: `raise` ends the run, `warn` and `ignore` let it go on as if the listener
            had said nothing. An attribute `on_error` of a listener stands above it. Training is not touched either way.
        seed: Of a new state.
        step: A compiled `training.step`.
        evaluate: A compiled `training.evaluate`.
        span: Entered as a context around each part, with its name: `data`, `step`, `validation`, and each listener; `Profile.span`.

    Raises:
        ValueError: If not exactly one target is given, or it is not positive.
        TypeError: If `batches` is a single batch, or a listener cannot be called.
        DataError: If there are no batches, or they cannot be iterated again.
        StallError: If no update was applied over several epochs, or a gate asks to halt.
        DistributedError: If ranks begin with different states, or one of them fails.
    """
    target = parse_target(time_budget, num_epochs=num_epochs, num_steps=num_steps, num_batches=num_batches)
    check_batches(batches)
    warn_of_filling(training.loss, batches)
    heard = check_listeners(listeners, on_listener_error)
    if time_budget is not None:
        heard = (*heard, StopAtTime(time_budget, reason="time_budget"))
    run = _Run(training, batches, target, validation, heard, on_listener_error, step or training.step, evaluate, span)
    start = newest = whole = first_moment(training.init(seed) if state is None else state)
    if training.ranks.world_size > 1:
        from ..distributed.checks import compare_states  # loads torch.distributed, which one process does not need

        compare_states(start.state, training.ranks, "fit: the first state")
    moments = run.moments(start)
    del start  # nothing but the newest moments shall hold a state
    try:
        for newest in moments:
            whole = newest if newest.whole else whole
    except Exception as error:
        run.tell_of(error, whole, newest)
        raise
    assert newest.stop is not None
    return FitResult(newest.state, list(newest.history), newest.stop.reason)


@dataclasses.dataclass(frozen=True)
class _Run:
    """The fixed parts of one call of `fit`; everything that changes is a `Moment`, passed along."""

    training: Training
    batches: Any
    target: Target
    validation: Validation | None
    listeners: tuple[Listener, ...]
    policy: OnListenerError
    step: Step
    evaluate: Evaluate | None
    span: Span

    def moments(self, now: Moment) -> Iterator[Moment]:
        """All moments of the run. Only the newest is held, so that no state outlives its step."""
        now = self.tell(Stage.SETUP, now)
        if self.target.reached(now):
            yield now.replace(stop=Stop(str(self.target.name)))
            return
        now = self.tell(Stage.BEFORE_TRAINING, now)
        idle_epochs = 0
        while now.stop is None:
            if now.epoch_step_count == 0:
                now = self.tell(Stage.BEFORE_EPOCH, now)
            yield now
            applied_before = now.step_count
            for batch in self.feed(now.epoch_count, now.epoch_step_count, _device_of(now)) if now.stop is None else ():
                before, now = now.step_count, now.replace(batch=batch)
                yield now
                now = self.after_step(self.run_step(now, batch), before)
                yield now
                _check_halt(now, asked=now.asked_at == now.batch_count)
                if not now.whole:
                    now = self.observe(self.validate(now))
                    yield now
                    now = self.tell(Stage.AFTER_VALIDATION, now)
                now = self.at_target(now)
                if now.epoch_step_count != size_of(self.batches):  # else the epoch ends first
                    now = self.last_validation(now)
                now = self.tell(Stage.AFTER_BATCH, now, batch)
                if now.stop is not None:
                    break
            if now.epoch_step_count == 0 and now.stop is None:
                raise DataError(no_batches_text(self.batches, now.epoch_count))
            if now.stop is None or now.epoch_step_count == size_of(self.batches):
                now = self.end_epoch(now.looked())
                yield now
                _check_halt(now, asked=True)
                if not now.whole:
                    now = self.observe(self.validate(now))
                    yield now
                    now = self.tell(Stage.AFTER_VALIDATION, now)
                now = self.last_validation(self.at_target(now.replace(history=(*now.history, _record(now, {})))))
                now = self.tell(Stage.AFTER_EPOCH, now)
            now = now.looked()
            idle_epochs = idle_epochs + 1 if now.step_count == applied_before else 0
            if now.stop is None and idle_epochs >= _PATIENCE:
                raise _stall(f"in {idle_epochs} epochs ({now.batch_count} batches so far)")
        now = self.last_validation(now)  # of a run that a listener ended
        yield self.tell(Stage.AFTER_TRAINING, now, stop_reason=now.stop.reason if now.stop is not None else None)

    def feed(self, epoch: int, start: int, device: Any) -> Iterator[Any]:
        """The rest of an epoch, on the device."""
        rest = iter(in_step(self.training.ranks, rest_of_epoch(self.batches, epoch, start)))
        end = object()
        while True:
            with self.span("data"):
                batch = next(rest, end)
                if batch is not end:
                    batch = tree.to_device(batch, device, non_blocking=True)
            if batch is end:
                return
            yield batch

    def run_step(self, now: Moment, batch: Any) -> Moment:
        with self.span("step"):
            state, metrics = form_at(self.step, now.state)(now.state, batch)
        counts = {"batch_count": now.batch_count + 1, "epoch_step_count": now.epoch_step_count + 1}
        return now.replace(state=state, metrics=metrics, summary=None, batch=None, **counts)

    def after_step(self, now: Moment, before: int) -> Moment:
        """Ask the device if something could be due, and note whether a validation is."""
        if not self.due(now):
            return now
        now = now.looked()
        if now.batch_count - now.moved_at >= _PATIENCE_BATCHES:
            raise _stall(f"in {now.batch_count - now.moved_at} batches")
        return now.replace(whole=self.validation is None or not crossed(self.validation.every_n_steps, before, now.step_count))

    def due(self, now: Moment) -> bool:
        """Whether enough updates may have been applied for something to happen; only then is the device asked."""
        every = self.validation.every_n_steps if self.validation is not None else None
        near_end = self.target.name == "num_steps" and now.step_bound >= self.target.value
        return crossed(every, now.step_count, now.step_bound) or near_end or now.batch_count - now.asked_at >= _PATIENCE_BATCHES

    def at_target(self, now: Moment) -> Moment:
        """The same moment, ended if the target is reached and nobody asked for an end before."""
        return now.replace(stop=Stop(str(self.target.name))) if now.stop is None and self.target.reached(now) else now

    def last_validation(self, now: Moment) -> Moment:
        """Validate where a run ends, if no cadence has; plateau transforms do not hear of it: a run in pieces equals one in a piece."""
        if self.validation is None or now.stop is None or now.validated_at == now.batch_count or is_preemption(now.stop.reason):
            return now
        return self.tell(Stage.AFTER_VALIDATION, self.validate(now), stop_reason=now.stop.reason)

    def end_epoch(self, now: Moment) -> Moment:
        ended = now.replace(state=self.training.end_epoch(now.state), summary=None).looked()
        v = self.validation
        validates = v is not None and (
            crossed(v.every_n_epochs, now.epoch_count, ended.epoch_count) or crossed(v.every_n_steps, now.step_count, ended.step_count)
        )
        return ended.replace(whole=not validates)

    def validate(self, now: Moment) -> Moment:
        assert self.validation is not None
        with self.span("validation"):
            summary = validate(self.training, now.state, self.validation, self.evaluate)
        return now.replace(summary=summary, validated_at=now.batch_count, history=(*now.history, _record(now, summary)))

    def observe(self, now: Moment) -> Moment:
        """Hand the validated loss to plateau transforms; nothing is left half done then."""
        assert now.summary is not None
        state = observe(now.state, now.summary["loss/total"]) if observes(now.state) else now.state
        return now.replace(state=state, whole=True)

    def tell(self, stage: Stage, now: Moment, batch: Any = None, stop_reason: str | None = None) -> Moment:
        """Let all listeners hear of this moment; the first wish to stop stands."""
        event = self.event(stage, now, batch=batch, stop_reason=stop_reason)
        reason = ask_together(self.training.ranks, self.listeners, event, self.policy, self.span)
        return now if now.stop is not None or reason is None else now.replace(stop=Stop(reason))

    def tell_of(self, error: Exception, whole: Moment, newest: Moment) -> None:
        """Let listeners that asked for it know of an error, with the last state at which nothing was half done.

        Where ranks share the batches, the listeners of every rank that also have a true attribute `on_every_rank` are told: they know of
        other ranks, and that these may be gone or at another batch. What saves a state in one process would save that of one rank.
        """
        shared = self.training.ranks.world_size > 1
        told = [listener for listener in self.listeners if not shared or getattr(listener, "on_every_rank", False)]
        for now in (whole, newest):
            if _has_memory(now.state):
                tell_of_error(told, self.event(Stage.AFTER_TRAINING, now, error=error, batch=newest.batch))
                return
        error.add_note("the state before this error was given to a step compiled with donate=True, so no listener was told of it")

    def event(self, stage: Stage, now: Moment, **more: Any) -> Event:
        return Event(
            stage=stage,
            state=now.state,
            batch_count=now.batch_count,
            epoch_count=now.epoch_count,
            epoch_step_count=now.epoch_step_count,
            step_bound=now.step_bound,
            metrics=now.metrics,
            validation=now.summary,
            num_batches=size_of(self.batches),
            target=self.target.as_dict(),
            **more,
        )


def _device_of(now: Moment) -> Any:
    return tree.leaves(now.state.params)[0].device


def _has_memory(state: TrainState) -> bool:
    try:
        check_not_consumed(state, "fit")
    except ConsumedStateError:
        return False
    return True


def _stall(when: str) -> StallError:
    return StallError(
        f"no update was applied {when}: every batch is vetoed by a gate (non-finite values, spikes), or the accumulation window is "
        "longer than that; the metrics of the gates say which"
    )


def _check_halt(now: Moment, *, asked: bool) -> None:
    """End the run if a gate wants it: at once where the flag is with the host, else when the device is asked anyway."""
    for name, value in now.metrics.items():
        if name.endswith("/halt") and (asked or _is_with_host(value)) and bool(value):
            raise StallError(f"{name.removesuffix('/halt')} asks to stop: too many rejected batches in a row; its metrics say why")


def _is_with_host(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.device.type == "cpu"


def _record(now: Moment, summary: Mapping[str, Tensor | float]) -> dict[str, float]:
    counters = {name: float(getattr(now, name)) for name in ("batch_count", "step_count", "epoch_count")}
    return {**counters, **read_scalars(now.metrics), **{f"validation/{name}": float(value) for name, value in summary.items()}}
