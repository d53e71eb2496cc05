"""From the annotations of functions to types of a spec: what of a signature JSON can say, and how.

A number stays a number, a schedule becomes an object with a `kind`, a dtype its name, a selection of leaves its patterns. Functions,
tensors and trees have no form in JSON; an argument that takes nothing else is left out, or the function is if it cannot do without.
"""

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ForwardRef, Literal

import torch
from pydantic import Discriminator, Tag

from ..core.schedule import Schedule
from ..core.transform import GradientTransform

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
"""Names of dtypes in a spec."""

_PLAIN = {bool: "true or false", int: "number", float: "number", str: "text"}
_BY_TYPE = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", tuple: "list", type(None): "null"}


def sort_of(value: Any) -> str:
    """Which of JSON's types a value has."""
    return _BY_TYPE.get(type(value), "object")


def translate(annotation: Any) -> Any | None:
    """The type of a spec for an annotation; None if JSON cannot hold any of its values but null."""
    members = _members(annotation)
    by_sort: dict[str, list[Any]] = {}
    for sort, member in filter(None, map(_one, members)):
        by_sort.setdefault(sort, []).append(member)
    if not by_sort.keys() - {"null"}:
        return None
    branches = {sort: typing.Union[tuple(found)] for sort, found in by_sort.items()}  # noqa: UP007 - made at run time
    if len(branches) == 1:
        return next(iter(branches.values()))
    tagged = tuple(Annotated[branch, Tag(sort)] for sort, branch in branches.items())
    # told apart by JSON's own types, so that a wrong value gives the errors of one branch and not of all
    return Annotated[typing.Union[tagged], Discriminator(sort_of)]  # noqa: UP007


def admits(annotation: Any, value: Any) -> bool:
    """Whether values of this one's JSON type are among those that the type of a spec for an annotation takes."""
    return sort_of(value) in {found[0] for found in map(_one, _members(annotation)) if found is not None}


def _members(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) in (types.UnionType, typing.Union) else (annotation,)


def _one(annotation: Any) -> tuple[str, Any] | None:
    """JSON's type and the type of a spec."""
    if annotation in _PLAIN:
        return _PLAIN[annotation], annotation
    if annotation in (None, types.NoneType):
        return "null", None
    if annotation is torch.dtype:
        return "text", Literal[tuple(DTYPES)]
    if annotation == Schedule:
        return "object", ForwardRef("ScheduleOrTarget")
    if annotation is GradientTransform:
        return "object", ForwardRef("UpdateOrTarget")
    return _generic(typing.get_origin(annotation), typing.get_args(annotation))


def _generic(origin: Any, arguments: tuple[Any, ...]) -> tuple[str, Any] | None:
    if origin is Literal:
        return "text", Literal[arguments]
    if origin is Callable or origin not in (tuple, Sequence, Iterable, Mapping):
        return None
    inner = [translate(argument) for argument in arguments]
    if any(one is None for one in inner):
        return None
    if origin is Mapping:
        return "object", dict[inner[0], inner[1]]  # type: ignore[valid-type]
    return "list", tuple[tuple(inner)] if origin is tuple else tuple[inner[0], ...]  # type: ignore[misc, valid-type]
