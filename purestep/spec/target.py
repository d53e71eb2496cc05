"""Something importable and its arguments, in the place of a part of purestep's own; `trust.py` says what may be imported."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, StringConstraints, Tag

from .positions import escape

DottedPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$")]


class Target(BaseModel):
    """Something importable and the arguments it is called with: the one open model of a spec."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    cls_path: DottedPath
    """Dotted path of what is called; what is not of purestep has to be trusted by `--trust`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The keywords."""
        return dict(self.__pydantic_extra__ or {})


def _form_of(value: Any) -> str:
    """Whether a part is one of ours or a target; words that are no keys of a document."""
    return "a target" if isinstance(value, Target) or (isinstance(value, dict) and "cls_path" in value) else "a kind"


def or_target(kinds: Any, target: Any = Target) -> Any:
    """The type of a place where a part of ours can stand, or a target."""
    return Annotated[Annotated[kinds, Tag("a kind")] | Annotated[target, Tag("a target")], Discriminator(_form_of)]


def targets_in(value: Any, pointer: str = "") -> Iterator[tuple[str, Target]]:
    """Every target in a part, however deep, with its pointer.

    Args:
        value: A part, or parts in a list or an object.
        pointer: Where it stands.
    """
    if isinstance(value, Target):
        yield pointer, value
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            yield from targets_in(getattr(value, name), f"{pointer}/{info.alias or name}")
    elif isinstance(value, list | tuple | dict):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from targets_in(inner, f"{pointer}/{escape(str(key))}")
