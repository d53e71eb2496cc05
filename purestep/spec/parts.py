"""From the models of parts to the parts: each `kind` is called with what the spec gives.

Nothing outside purestep is imported or called, but for targets (`cls_path`), where a caller says what is trusted; checks leave them out.
"""

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..core.loss import ComposedLoss
from ..core.schedule import Schedule
from ..core.transform import GradientTransform, chain
from ..errors import PurestepError
from ..schedules import constant
from .annotations import DTYPES
from .envelope import Spec, Strategy
from .families import FAMILIES, MODELS, Model, is_from_schedule
from .problems import Problem
from .target import Target, targets_in
from .trust import HOOK, METRIC, SCHEDULE, TERM, TRANSFORM, Role, call_target, problems_of_own_models


class PartError(Exception):
    """A part that its function refuses, or an argument that is not there."""

    def __init__(self, problem: Problem):
        super().__init__(problem.message)
        self.problem = problem


_FAMILY_OF_MODEL = {model: family for family, models in MODELS.items() for model in models.values()}


def make(part: Model, pointer: str, learning_rate: float | Schedule | None = None, trust: Sequence[str] = ()) -> Any:
    """Call the function that a part names, after those that its arguments name.

    Args:
        pointer: Where the part stands in the spec.
        learning_rate: What stands in for a learning rate that is left out.
        trust: What targets inside it may name.

    Raises:
        PartError: If it does not take these values.
        TrustError: If a target inside it is not trusted.
    """
    kind = part.kind  # type: ignore[attr-defined]
    function = FAMILIES[_FAMILY_OF_MODEL[type(part)]][kind]
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        value = _given(part, name)
        if value is _NOTHING and not is_from_schedule(parameter):
            continue
        value = _stand_in(pointer, learning_rate) if value is _NOTHING else value
        arguments[name] = _argument(value, parameter, f"{pointer}/{name}", learning_rate, trust)
    try:
        return function(**arguments)
    except (ValueError, TypeError, ArithmeticError, PurestepError) as error:
        raise PartError(Problem("PS105", pointer, str(error))) from error


_NOTHING = object()


def _given(part: Model, name: str) -> Any:
    """What a part says about an argument; nothing if that is the default, which may be the function's own or `strategy.schedule`."""
    field = next((own for own, info in type(part).model_fields.items() if info.alias == name), None)
    if field is None:
        return _NOTHING
    value, info = getattr(part, field), type(part).model_fields[field]
    is_default = not info.is_required() and value == info.default and type(value) is type(info.default)
    return _NOTHING if is_default else value


def _stand_in(pointer: str, learning_rate: float | Schedule | None) -> float | Schedule:
    if learning_rate is None:
        raise PartError(Problem("PS103", pointer, "the field 'learning_rate' is missing; give it here, or strategy.schedule for all"))
    return learning_rate


def _argument(value: Any, parameter: inspect.Parameter, pointer: str, learning_rate: float | Schedule | None, trust: Sequence[str]) -> Any:
    if isinstance(value, Model):
        return make(value, pointer, learning_rate, trust)
    if isinstance(value, Target):
        return call_target(value, pointer, trust, TRANSFORM if _admits(parameter.annotation, GradientTransform) else SCHEDULE)
    if isinstance(value, tuple) and any(isinstance(item, Model | Target) for item in value):
        return [_argument(item, parameter, f"{pointer}/{i}", learning_rate, trust) for i, item in enumerate(value)]
    if isinstance(value, dict) and any(isinstance(item, Model | Target) for item in value.values()):
        return {key: _argument(item, parameter, f"{pointer}/{key}", learning_rate, trust) for key, item in value.items()}
    if isinstance(value, str) and "dtype" in parameter.name and value in DTYPES:
        return DTYPES[value]
    return value


def _admits(annotation: Any, wanted: Any) -> bool:
    """Whether a type is in an annotation, however deep."""
    return annotation is wanted or any(_admits(inner, wanted) for inner in typing.get_args(annotation))


def make_rate(strategy: Strategy, trust: Sequence[str] = ()) -> float | Schedule | None:
    """The learning rate of the strategy, if it has one."""
    given = strategy.schedule
    return _part(given, "/strategy/schedule", SCHEDULE, trust) if isinstance(given, Model | Target) else given


def _part(part: Any, pointer: str, role: Role, trust: Sequence[str], rate: float | Schedule | None = None) -> Any:
    return call_target(part, pointer, trust, role) if isinstance(part, Target) else make(part, pointer, rate, trust)


def make_optimizer(strategy: Strategy, trust: Sequence[str] = ()) -> GradientTransform:
    """The chain of `update`."""
    rate = make_rate(strategy, trust)
    parts = [_part(part, f"/strategy/update/{i}", TRANSFORM, trust, rate) for i, part in enumerate(strategy.update)]
    try:
        return chain(*parts)
    except (ValueError, TypeError, PurestepError) as error:
        raise PartError(Problem("PS108", "/strategy/update", str(error))) from error


def make_loss(strategy: Strategy, trust: Sequence[str] = ()) -> ComposedLoss:
    """The weighted sum of the terms."""
    terms, weights = [], []
    for i, part in enumerate(strategy.loss):
        pointer, weight = f"/strategy/loss/{i}", part.weight
        terms.append(_part(part, pointer, TERM, trust))
        weights.append(make(weight, f"{pointer}/weight") if isinstance(weight, Model) else weight)
    try:
        loss = ComposedLoss(terms, weights=weights, normalize_weights=strategy.normalize_weights)
        loss.check()
    except (ValueError, TypeError, PurestepError) as error:
        raise PartError(Problem("PS108", "/strategy/loss", str(error))) from error
    return loss


def make_hooks(strategy: Strategy, trust: Sequence[str] = ()) -> tuple[Any, ...]:
    """The hooks, in order."""
    return tuple(_part(part, f"/strategy/hooks/{i}", HOOK, trust) for i, part in enumerate(strategy.hooks))


def make_metrics(spec: Spec, trust: Sequence[str] = ()) -> tuple[Any, ...]:
    """The metrics of the validation."""
    chosen = spec.validation.metrics if spec.validation is not None else ()
    return tuple(_part(part, f"/validation/metrics/{i}", METRIC, trust) for i, part in enumerate(chosen))


def learning_rate_curve(spec: Spec) -> Schedule | None:
    """The learning rate over updates: that of the strategy, or the only one that a part of `update` gives. None of a target is known."""
    given = spec.strategy.schedule
    rates = (
        [given]
        if given is not None
        else [rate for part in _inner_parts(spec.strategy.update) if (rate := getattr(part, "learning_rate", None)) is not None]
    )
    if len(rates) != 1 or any(targets_in(rates)):
        return None
    return make(rates[0], "/strategy") if isinstance(rates[0], Model) else constant(rates[0])


def takes_schedule(part: Model | Target) -> bool:
    """Whether a part, or one inside it, has left its learning rate to `strategy.schedule`; nobody knows of a target."""
    if isinstance(part, Target):
        return False
    function = FAMILIES[_FAMILY_OF_MODEL[type(part)]][part.kind]  # type: ignore[attr-defined]
    own = any(
        is_from_schedule(p) and _given(part, name) is _NOTHING for name, p in inspect.signature(function, eval_str=True).parameters.items()
    )
    return own or any(takes_schedule(inner) for inner in _inner_parts([getattr(part, name) for name in type(part).model_fields]))


def _inner_parts(value: Any) -> Iterator[Model]:
    if isinstance(value, Model):
        yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _inner_parts(inner)


def problems_of_parts(spec: Spec) -> list[Problem]:
    """Build every part that the spec names by kind, and report those that their functions refuse, all of them; and models of ours."""
    strategy = spec.strategy
    makers: list[Callable[[], Any]] = []
    rate: float | Schedule | None = 1.0  # a refused schedule is reported once, not by all that would use it
    if not any(targets_in(strategy.schedule)):
        makers.append(lambda: make_rate(strategy))
        with contextlib.suppress(PartError):
            rate = make_rate(strategy)
    metrics = spec.validation.metrics if spec.validation is not None else ()
    places = {f"/strategy/{name}": getattr(strategy, name) for name in ("update", "loss", "hooks")} | {"/validation/metrics": metrics}
    for place, parts in places.items():
        own = [(i, part) for i, part in enumerate(parts) if not any(targets_in(part))]
        makers += [partial(make, part, f"{place}/{i}", rate if place == "/strategy/update" else None) for i, part in own]
    # what the parts are together is known only if nothing has to be imported for it
    if not any(targets_in((strategy.update, strategy.schedule))):
        makers.append(lambda: make_optimizer(strategy))
    if not any(targets_in(strategy.loss)):
        makers.append(lambda: make_loss(strategy))
    found = [problem for maker in makers if (problem := _refusal(maker)) is not None]
    return list(dict.fromkeys([*found, *problems_of_own_models(spec)]))


def _refusal(maker: Callable[[], Any]) -> Problem | None:
    try:
        maker()
    except PartError as error:
        return error.problem
    return None
