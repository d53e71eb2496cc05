"""From the models of parts to the parts: each `kind` is called with what the spec gives.

Nothing outside purestep is imported or called, but for targets (`cls_path`), where a caller says what is trusted; checks leave them out.
"""

import contextlib
import inspect
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
from .target import Target
from .trust import HOOK, TERM, TRANSFORM, Role, call_target, problems_of_own_models


class PartError(Exception):
    """A part that its function refuses, or an argument that is not there."""

    def __init__(self, problem: Problem):
        super().__init__(problem.message)
        self.problem = problem


_FAMILY_OF_MODEL = {model: family for family, models in MODELS.items() for model in models.values()}


def make(part: Model, pointer: str, learning_rate: float | Schedule | None = None) -> Any:
    """Call the function that a part names, after those that its arguments name.

    Args:
        pointer: Where the part stands in the spec.
        learning_rate: What stands in for a learning rate that is left out.

    Raises:
        PartError: If it does not take these values.
    """
    kind = part.kind  # type: ignore[attr-defined]
    function = FAMILIES[_FAMILY_OF_MODEL[type(part)]][kind]
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        value = _given(part, name)
        if value is _NOTHING and not is_from_schedule(parameter):
            continue
        value = _stand_in(pointer, learning_rate) if value is _NOTHING else value
        arguments[name] = _argument(value, parameter, f"{pointer}/{name}", learning_rate)
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


def _argument(value: Any, parameter: inspect.Parameter, pointer: str, learning_rate: float | Schedule | None) -> Any:
    if isinstance(value, Model):
        return make(value, pointer, learning_rate)
    if isinstance(value, tuple) and any(isinstance(item, Model) for item in value):
        return [_argument(item, parameter, f"{pointer}/{i}", learning_rate) for i, item in enumerate(value)]
    if isinstance(value, dict) and any(isinstance(item, Model) for item in value.values()):
        return {key: _argument(item, parameter, f"{pointer}/{key}", learning_rate) for key, item in value.items()}
    if isinstance(value, str) and "dtype" in parameter.name and value in DTYPES:
        return DTYPES[value]
    return value


def make_rate(strategy: Strategy) -> float | Schedule | None:
    """The learning rate of the strategy, if it has one."""
    given = strategy.schedule
    return make(given, "/strategy/schedule") if isinstance(given, Model) else given


def _part(part: Any, pointer: str, role: Role, trust: Sequence[str], rate: float | Schedule | None = None) -> Any:
    return call_target(part, pointer, trust, role) if isinstance(part, Target) else make(part, pointer, rate)


def make_optimizer(strategy: Strategy, trust: Sequence[str] = ()) -> GradientTransform:
    """The chain of `update`."""
    rate = make_rate(strategy)
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


def make_metrics(spec: Spec) -> tuple[Any, ...]:
    """The metrics of the validation."""
    chosen = spec.validation.metrics if spec.validation is not None else ()
    return tuple(make(part, f"/validation/metrics/{i}") for i, part in enumerate(chosen))


def learning_rate_curve(spec: Spec) -> Schedule | None:
    """The learning rate over updates: that of the strategy, or the only one that a part of `update` gives."""
    given = spec.strategy.schedule
    rates = (
        [given]
        if given is not None
        else [rate for part in _inner_parts(spec.strategy.update) if (rate := getattr(part, "learning_rate", None)) is not None]
    )
    if len(rates) != 1:
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
    makers: list[Callable[[], Any]] = [lambda: make_rate(strategy)]
    rate: float | Schedule | None = 1.0  # a refused schedule is reported once, not by all that would use it
    with contextlib.suppress(PartError):
        rate = make_rate(strategy)
    for name in ("update", "loss", "hooks"):
        own = [(i, part) for i, part in enumerate(getattr(strategy, name)) if not isinstance(part, Target)]
        makers += [partial(make, part, f"/strategy/{name}/{i}", rate if name == "update" else None) for i, part in own]
    makers.append(lambda: make_metrics(spec))
    # what the parts are together is known only if nothing has to be imported for it
    wholes = {"update": lambda: make_optimizer(strategy), "loss": lambda: make_loss(strategy)}
    makers += [maker for name, maker in wholes.items() if not any(isinstance(part, Target) for part in getattr(strategy, name))]
    found = [problem for maker in makers if (problem := _refusal(maker)) is not None]
    return list(dict.fromkeys([*found, *problems_of_own_models(spec)]))


def _refusal(maker: Callable[[], Any]) -> Problem | None:
    try:
        maker()
    except PartError as error:
        return error.problem
    return None
