"""Models of the parts that a spec chooses by `kind`, made from the tables of the families.

The signature of a function is the schema, its docstring the description, and nothing is written twice.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ForwardRef, Literal

import torch
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model
from typing_extensions import TypeAliasType

from ..core.loss import LossTerm
from ..core.schedule import Schedule
from ..hooks import HOOKS
from ..losses import LOSSES, WEIGHTS
from ..metrics import METRICS
from ..optimizers import OPTIMIZERS
from ..schedules import SCHEDULES
from ..transforms import TRANSFORMS
from .annotations import admits, sort_of, translate
from .selections import SELECTIONS
from .target import Target, or_target


class Model(BaseModel):
    """What every model of a spec has in common: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True, use_attribute_docstrings=True
    )


class _Made(Model):
    """Base of the models that are made from signatures: they have no source in which to look for docstrings of fields."""

    model_config = ConfigDict(use_attribute_docstrings=False)


_PLAIN = (bool, int, float, str, tuple, type(None))  # of defaults


def _is_term(factory: Any) -> bool:
    return inspect.isclass(factory) and issubclass(factory, LossTerm)


FAMILIES: dict[str, Any] = {
    "update": {**TRANSFORMS, **OPTIMIZERS, **SELECTIONS},
    "schedule": SCHEDULES,
    "loss": {name: factory for name, factory in LOSSES.items() if _is_term(factory)},
    "weight": WEIGHTS,
    "hook": HOOKS,
    "metric": METRICS,
}
"""What a `kind` can be, by the place where it stands."""


def describe_arguments(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first line of a docstring, and the section `Args` by argument; a class inherits those of its bases."""
    owners = [one for one in function.__mro__ if one is not object] if inspect.isclass(function) else [function]
    texts = [inspect.cleandoc(one.__doc__ or "") for one in owners]
    arguments: dict[str, str] = {}
    for text in texts:
        section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", section.group(1) if section else "", re.MULTILINE):
            arguments.setdefault(name, " ".join(words.split()))
    return texts[0].partition("\n")[0], arguments


def model_of(kind: str, function: Callable[..., Any], extra: Mapping[str, Any] | None = None) -> type[Model] | None:
    """A model with a field for each argument of a function that JSON can hold; None if one without a default is not among them."""
    summary, words = describe_arguments(function)
    fields: dict[str, Any] = {"kind": (Literal[kind], Field(description=summary))}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        field = _field(parameter, words.get(name))
        if field is None and parameter.default is parameter.empty:
            return None
        if field is not None:
            fields[f"{name}_" if hasattr(BaseModel, name) else name] = field
    return create_model(kind, __base__=_Made, __module__=__name__, __doc__=summary, **fields, **(extra or {}))


def _field(parameter: inspect.Parameter, description: str | None) -> tuple[Any, Any] | None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return None
    default, annotation = parameter.default, parameter.annotation
    words = description or ""
    if is_from_schedule(parameter):
        default, annotation, words = None, annotation | None, f"{words} null, or nothing: `strategy.schedule`.".lstrip()
    elif isinstance(default, torch.dtype):
        default = str(default).removeprefix("torch.")
    elif default is not parameter.empty and not (type(default) in _PLAIN and admits(annotation, default)):
        # a transform is a tuple, but not a plain one; True selects all leaves, but a spec selects by patterns
        default, annotation, words = None, annotation | None, f"{words} null, or nothing: the function's own.".lstrip()
    translated = translate(annotation)
    if translated is None:
        return None
    about: dict[str, Any] = {"alias": parameter.name, "description": words or None}
    return translated, Field(**about) if default is parameter.empty else Field(default, **about)


def is_from_schedule(parameter: inspect.Parameter) -> bool:
    """Whether an argument may be left out of a spec because `strategy.schedule` stands in."""
    admits = Schedule in (parameter.annotation, *typing.get_args(parameter.annotation))
    return parameter.name == "learning_rate" and admits and parameter.default is parameter.empty


def _models(family: str, extra: Mapping[str, Any] | None = None) -> dict[str, type[Model]]:
    made = {name: model_of(name, function, extra) for name, function in FAMILIES[family].items()}
    return {name: model for name, model in made.items() if model is not None}


def _choice(name: str, models: Mapping[str, type[Model]]) -> Any:
    # an alias has one place in the JSON Schema, where a plain union would be written out wherever it is used
    return TypeAliasType(name, Annotated[typing.Union[tuple(models.values())], Field(discriminator="kind")])  # noqa: UP007


_WEIGHT: Any = Annotated[
    Annotated[float, Tag("number")] | Annotated[ForwardRef("WeightSpec"), Tag("object")],
    Discriminator(sort_of),
]
_EXTRA = {"loss": {"weight": (_WEIGHT, Field(1.0, description="Factor of the term: a number, or a schedule of one."))}}

MODELS: dict[str, dict[str, type[Model]]] = {family: _models(family, _EXTRA.get(family)) for family in FAMILIES}
"""The models of each family by kind; a function that JSON cannot call has none."""

# The names that the annotations refer to.
ScheduleSpec: Any = _choice("ScheduleSpec", MODELS["schedule"])
UpdateSpec: Any = _choice("UpdateSpec", MODELS["update"])
LossSpec: Any = _choice("LossSpec", MODELS["loss"])
WeightSpec: Any = _choice("WeightSpec", MODELS["weight"])
HookSpec: Any = _choice("HookSpec", MODELS["hook"])
MetricSpec: Any = _choice("MetricSpec", MODELS["metric"])
ScheduleOrTarget: Any = TypeAliasType("ScheduleOrTarget", or_target(ScheduleSpec))
UpdateOrTarget: Any = TypeAliasType("UpdateOrTarget", or_target(UpdateSpec))
HookOrTarget: Any = or_target(HookSpec)
MetricOrTarget: Any = or_target(MetricSpec)


class LossTarget(Target):
    """A term of the loss from elsewhere."""

    weight: _WEIGHT = Field(1.0)
    """Factor of the term: a number, or a schedule of one."""


LossOrTarget: Any = or_target(LossSpec, LossTarget)
