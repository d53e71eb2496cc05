"""What looks wrong with how a run learns: parts of the data that nobody kept apart, weights that grow, an average that has not begun."""

from collections.abc import Iterator

import torch

from ..optimizers import OPTIMIZERS
from .envelope import Spec
from .own_parts import has_parts
from .parts import learning_rate_curve
from .problems import Problem

_MOST_INITIAL = 0.05  # weight of the initial weights in an average that is worth looking at
_MOST_PLACES = 1_000_000  # at which a schedule is looked at
_STEPS = frozenset({*OPTIMIZERS, "scale_by_learning_rate", "scale_by_schedule"})  # kinds that make steps of gradients
_ENDS = ("stable_steps", "decay_steps", "transition_steps", "num_steps", "total_steps", "cycle_steps")  # what schedules call their length


def doubts(spec: Spec, steps: int | None) -> Iterator[Problem]:
    """Warnings about a run that would start, and disappoint.

    Args:
        steps: Updates of the run, if they are known.
    """
    yield from _whole_stores(spec)
    yield from _growing_weights(spec)
    if steps is not None:
        yield from _averages_of_the_beginning(spec, steps)
        yield from idle_updates(spec, 0, steps)


def _whole_stores(spec: Spec) -> Iterator[Problem]:
    data = spec.dataset
    if data.split is None and (divided := [path for path in data.paths if has_parts(path)]):
        yield Problem(
            "PS314", "/dataset/split", f"{divided[0]} has parts, and the run trains on all of them; give dataset.split and validation_split"
        )


def _growing_weights(spec: Spec) -> Iterator[Problem]:
    made: str | None = None
    for place, part in enumerate(spec.strategy.update):
        kind = getattr(part, "kind", None)
        if kind == "add_decayed_weights" and made is not None:
            message = f"decay that is added after {made} is neither scaled by the learning rate nor a step towards 0: the weights grow"
            yield Problem("PS308", f"/strategy/update/{place}", f"{message}; put it before {made}, or give that a weight_decay")
        made = kind if kind in _STEPS else made


def _averages_of_the_beginning(spec: Spec, steps: int) -> Iterator[Problem]:
    for place, hook in enumerate(spec.strategy.hooks):
        if getattr(hook, "kind", None) != "ema" or hook.debias or hook.start_step or not isinstance(hook.decay, float):
            continue
        left = hook.decay ** (steps // hook.update_every)
        if left > _MOST_INITIAL:
            message = f"after {steps:,} updates {100 * left:.0f} % of the average are still the initial weights; debias, or a smaller decay"
            yield Problem("PS315", f"/strategy/hooks/{place}", message)


def idle_updates(spec: Spec, start: int, steps: int) -> Iterator[Problem]:
    """A warning if the learning rate is 0 from some update on until the end.

    Args:
        start: Updates that are done already.
        steps: Updates of the whole run.
    """
    rate = learning_rate_curve(spec)
    if rate is None or steps - start < 2:
        return
    places = torch.linspace(start, steps - 1, min(steps - start, _MOST_PLACES), dtype=torch.float64).round()
    moving = torch.nonzero(torch.broadcast_to(rate(places), places.shape)).flatten()
    first = start if len(moving) == 0 else int(places[int(moving[-1])]) + 1
    if steps - first < 2:  # many schedules come to 0 with the last update
        return
    schedule = spec.strategy.schedule
    field = next((name for name in _ENDS if getattr(schedule, name, None) is not None), None)
    pointer = "/strategy/schedule" if field is None else f"/strategy/schedule/{field}"
    stretch = "stretch the schedule" if field is None else f"stretch strategy.schedule.{field} along with the run"
    yield Problem(
        "PS316", pointer, f"the learning rate is 0 from update {first:,} to the end at {steps:,}: nothing is learnt there; {stretch}"
    )
