"""Something importable and its arguments, in the place of a part of purestep's own; `trust.py` says what may be imported."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

from .annotations import sort_of
from .families import HookSpec, LossSpec, UpdateSpec, WeightSpec

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


class LossTarget(Target):
    """A term of the loss from elsewhere."""

    weight: Annotated[Annotated[float, Tag("number")] | Annotated[WeightSpec, Tag("object")], Discriminator(sort_of)] = Field(1.0)
    """Factor of the term: a number, or a schedule of one."""


def _form_of(value: Any) -> str:
    """Whether a part is one of ours or a target; words that are no keys of a document."""
    return "a target" if isinstance(value, Target) or (isinstance(value, dict) and "cls_path" in value) else "a kind"


_form = Discriminator(_form_of)
Update = Annotated[Annotated[UpdateSpec, Tag("a kind")] | Annotated[Target, Tag("a target")], _form]
Loss = Annotated[Annotated[LossSpec, Tag("a kind")] | Annotated[LossTarget, Tag("a target")], _form]
Hook = Annotated[Annotated[HookSpec, Tag("a kind")] | Annotated[Target, Tag("a target")], _form]
