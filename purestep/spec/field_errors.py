"""What pydantic says about a value, in the words of a spec: a code, a pointer into the document, the nearest valid name."""

import json
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from .envelope import VERSION, Spec
from .families import FAMILIES, MODELS
from .positions import escape
from .problems import Problem, nearest

Location = Sequence[int | str]
_LONGEST = 60  # characters of a value in a message
_FAMILY_OF = {"update": "update", "schedule": "schedule", "loss": "loss", "weight": "weight", "hooks": "hook", "metrics": "metric"}
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
_LIMITS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def problems_of(failure: ValidationError, document: Any) -> list[Problem]:
    """All that pydantic found, without lines; an unknown key has a pointer with `#` at its end, which is the place of the key."""
    found = (_problem(error, document) for error in failure.errors(include_url=False, include_context=True))
    return [problem for problem in found if problem is not None]


def _problem(error: Any, document: Any) -> Problem | None:
    kind, context = error["type"], error.get("ctx", {})
    pointer, value, rest = _walk(error["loc"], document)
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        return Problem("PS101", f"{pointer}#", f"unknown field{nearest(name, _names_beside(error['loc'], document))}")
    if kind == "missing":
        return Problem("PS103", pointer, f"the field '{rest[-1]}' is missing")
    if kind == "union_tag_not_found":
        return Problem("PS103", pointer, "the field 'kind' is missing; it says what this is")
    if kind == "union_tag_invalid" and context["discriminator"] == "'kind'":
        return _unknown_kind(pointer, value, error["loc"], context)
    if kind == "union_tag_invalid":
        sorts = context["expected_tags"].replace("'", "").replace("object", "object with a 'kind'")
        return _mistyped(pointer, " or ".join(sorts.split(", ")), value)
    if pointer == "/spec_version":
        return Problem("PS109", pointer, f"this purestep reads version {VERSION}, got {_shown(value)}; update purestep, or the spec")
    if kind in _EXPECTED:
        return _mistyped(pointer, _EXPECTED[kind], value)
    return _out_of_range(kind, context, pointer, value)


def _out_of_range(kind: str, context: Any, pointer: str, value: Any) -> Problem | None:
    if kind == "literal_error":
        known = [one.strip(" '") for one in context["expected"].replace(" or ", ", ").split(",")]
        if isinstance(value, str):
            return Problem("PS105", pointer, f"unknown value {_shown(value)}{nearest(value, known)}")
        return _mistyped(pointer, context["expected"], value)
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return Problem("PS105", pointer, f"must be {words} {context[name]}, got {_shown(value)}")
    if kind == "too_short":
        # pydantic counts only the items that are right
        return Problem("PS105", pointer, f"must have at least {context['min_length']} item") if not value else None
    if kind == "string_pattern_mismatch":
        return Problem("PS105", pointer, f"must be a dotted path such as package.module.Class, got {_shown(value)}")
    if kind == "string_too_short":
        return Problem("PS105", pointer, "must not be empty")
    if kind == "finite_number":
        return Problem("PS107", pointer, "must be a finite number")
    return Problem("PS104", pointer, f"{kind.replace('_', ' ')}, got {_shown(value)}")


def _walk(location: Location, document: Any) -> tuple[str, Any, list[str]]:
    """The pointer of the deepest value that is there, that value, and the rest of the location: pydantic's also holds tags of unions."""
    pointer, value = "", document
    rest: list[str] = []
    for part in location:
        there = (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int) and part < len(value))
        if there:
            pointer, value, rest = f"{pointer}/{escape(str(part))}", value[part], []
        else:
            rest.append(str(part))
    return pointer, value, rest


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _mistyped(pointer: str, expected: str, value: Any) -> Problem:
    hint = "; write it without quotes" if isinstance(value, str) and "number" in expected and _is_number(value) else ""
    return Problem("PS104", pointer, f"expected {expected}, got {_shown(value)}{hint}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _family_at(location: Location) -> str:
    return next((_FAMILY_OF[part] for part in reversed(location) if part in _FAMILY_OF), "update")


def _unknown_kind(pointer: str, value: Any, location: Location, context: Any) -> Problem:
    kind, here = value["kind"], _family_at(location)
    known = [one.strip(" '") for one in context["expected_tags"].split(",")]
    place = f"{pointer}/kind"
    if not isinstance(kind, str):
        return _mistyped(place, "text", kind)
    # a known kind where another family is wanted, or one that JSON cannot call
    if kind in FAMILIES[here] and kind not in MODELS[here]:
        return Problem("PS110", place, f"'{kind}' takes a function or a tree, which JSON cannot hold; write this run in Python")
    elsewhere = [family for family in FAMILIES if kind in MODELS[family]]
    if elsewhere:
        return Problem("PS102", place, f"'{kind}' belongs to the family {elsewhere[0]!r}, not here")
    return Problem("PS102", place, f"there is no '{kind}'{nearest(kind, known)}")


def _names_beside(location: Location, document: Any) -> list[str]:
    """Names of the fields of the model that the last part of a location is not a field of."""
    parent = _walk(location[:-1], document)[1]
    kind = parent.get("kind") if isinstance(parent, dict) else None
    if isinstance(kind, str):
        made = [MODELS[family][kind] for family in (_family_at(location), *MODELS) if kind in MODELS[family]]
        return _aliases(made[0]) if made else []
    model: type[BaseModel] = Spec
    for part in location[:-1]:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = None if field is None else _model_in(field.annotation)
        model = model if inner is None else inner
    return _aliases(model)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    members = (annotation, *typing.get_args(annotation))
    return next((one for one in members if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _aliases(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
