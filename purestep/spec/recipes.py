"""Objects as recipes, and back: an importable target and plain arguments, in the form in which a spec holds parts.

What keeps its arguments says them itself: modules, terms of a loss, their weights, loaders. A transform, a schedule or a hook is made of
functions, which keep nothing that can be read back; its recipe is written down when it is made: `Recipe(ps.adamw, learning_rate=1e-3)`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from ..core.hook import Hook
from ..core.loss import Composable, ComposedLoss, FunctionTerm, LossTerm, WholeTerm
from ..core.transform import GradientTransform
from ..data import Loader
from ..errors import SpecError
from .data_recipes import loader_from_spec, loader_to_spec
from .families import FAMILIES, MODELS
from .field_errors import problems_of
from .parts import PartError, make
from .positions import dump
from .problems import Problem
from .target import Target
from .trust import HOOK, METRIC, MODULE, SCHEDULE, TERM, TRANSFORM, Role, call_target, own_names

_WAYS_OUT = "make it a function or class at the top of a module, or leave it out of the recipe and pass it again when the run is loaded"
_ROLES: dict[str, Role] = {"model": MODULE, "loss": TERM, "hook": HOOK, "update": TRANSFORM, "schedule": SCHEDULE, "metric": METRIC}


class Recipe:
    """A target and the arguments it is called with; `to_spec` writes it, `from_spec` calls it.

    Args:
        target: A function or class that can be imported by its name.
        arguments: Plain values, dtypes, recipes, objects that `to_spec` takes, or lists and mappings of these.

    Raises:
        SpecError: If the target is a lambda, a closure or a local function, or does not take the arguments.

    Example:
        >>> from purestep.optimizers import sgd
        >>> to_spec(Recipe(sgd, learning_rate=0.1))
        {'kind': 'sgd', 'learning_rate': 0.1}
    """

    def __init__(self, target: Callable[..., Any], /, **arguments: Any):
        self.target, self.arguments = target, dict(arguments)
        path_of(target)
        signature = inspect.signature(target)
        try:
            signature.bind_partial(**arguments)  # first, since an argument that is missing may only be misspelt
            signature.bind(**arguments)
        except TypeError as error:
            raise SpecError(f"{target.__qualname__}: {error}") from error


def path_of(target: Any) -> str:
    """The dotted path by which a function or class can be imported.

    Raises:
        SpecError: If there is none; the message names it, and says what to do.
    """
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module is None or name is None:
        raise SpecError(f"{target!r} is no function and no class; a recipe names what can be imported: {_WAYS_OUT}")
    if "<" in name or module == "__main__":
        what = "a lambda" if "<lambda>" in name else "defined inside a function" if "<" in name else "defined in the program itself"
        raise SpecError(f"{module}.{name} is {what}, which no other process can import; {_WAYS_OUT}")
    if _found(module, name) is not target:
        raise SpecError(f"{module}.{name} is not what is found under this name; {_WAYS_OUT}")
    # a name that needs no grant, where there is one
    public = (own.rpartition(".") for own in sorted(own_names()) if own.endswith(f".{name}"))
    return next((f"{home}.{name}" for home, _, _ in public if _found(home, name) is target), f"{module}.{name}")


def _found(module: str, name: str) -> Any:
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def to_spec(thing: Any) -> Any:
    """Write an object as a part of a spec: plain JSON.

    Args:
        thing: A `Recipe`, a module, a loss or a term of one, a weight, a loader over stores; or a list of such things.

    Raises:
        SpecError: If it does not say how it was made.
    """
    if isinstance(thing, Recipe):
        return _part(thing.target, thing.arguments)
    if isinstance(thing, nn.Module):
        return _module(thing)
    if isinstance(thing, ComposedLoss):
        return {"loss": [_weighted(one.term, one.weight) for one in thing.weighted()], "normalize_weights": thing.normalize_weights}
    if isinstance(thing, Loader):
        return loader_to_spec(thing)
    if isinstance(thing, FunctionTerm | WholeTerm):
        return _function_term(thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return _part(type(thing), _changed_fields(thing))
    if isinstance(thing, list | tuple) and not isinstance(thing, Hook | GradientTransform):
        return [to_spec(one) for one in thing]
    return _refuse(thing)


def _part(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((name for family in FAMILIES.values() for name, function in family.items() if function is target), None)
    name = {"kind": kind} if kind is not None else {"cls_path": path_of(target)}
    return name | {key: _plain(value, f"{path_of(target) if kind is None else kind}.{key}") for key, value in arguments.items()}


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, str)]:
            raise SpecError(f"{where}: keys of a recipe are text, got {other[0]!r}; keep such a mapping out of the arguments")
        return {key: _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, Hook | GradientTransform):
        return [_plain(inner, f"{where}.{i}") for i, inner in enumerate(value)]
    try:
        return to_spec(value)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def _refuse(thing: Any) -> Any:
    if isinstance(thing, GradientTransform | Hook):
        raise SpecError(
            f"the {'hook' if isinstance(thing, Hook) else 'transform'} {thing.name!r} is made of functions, which do not say with what "
            "arguments; make it by a recipe: Recipe(factory, **arguments)"
        )
    if callable(thing):
        path_of(thing)  # says what is wrong with a lambda or closure
        raise SpecError(f"{path_of(thing)} is a function and no part; a recipe calls it: Recipe({thing.__qualname__}, **arguments)")
    raise SpecError(f"{type(thing).__qualname__} has no recipe: it is none of the things that say how they were made")


# --- things that keep their arguments -----------------------------------------------------------------------------


def _module(module: nn.Module) -> dict[str, Any]:
    """By `checkpoint_spec()`, or from arguments of the constructor that are kept as attributes of the same names."""
    path = path_of(type(module))
    own = getattr(module, "checkpoint_spec", None)
    if callable(own):
        return {"cls_path": path} | {key: _plain(value, f"{path}.{key}") for key, value in own().items()}
    arguments = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SpecError(f"{path} takes *args or **kwargs, which no attribute can hold; give it a method checkpoint_spec()")
        if not hasattr(module, name):
            raise SpecError(f"{path} does not keep its argument {name!r} as an attribute; keep it, or give it a method checkpoint_spec()")
        arguments[name] = _plain(getattr(module, name), f"{path}.{name}")
    return {"cls_path": path, **arguments}


def _changed_fields(thing: Any) -> dict[str, Any]:
    """The fields that are not what they are by default."""
    given = {}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if field.init and (field.default is dataclasses.MISSING or value != field.default):
            given[field.name] = value
    return given


def _weighted(term: LossTerm, weight: Any) -> dict[str, Any]:
    return {**to_spec(term), "weight": weight if isinstance(weight, bool | int | float) else to_spec(weight)}


def _function_term(term: Any) -> Any:
    path = path_of(term.fn)  # a lambda is refused by its name
    raise SpecError(f"the loss is the function {path}, which a recipe cannot call for a term; write a class of LossTerm around it")


# --- and back -----------------------------------------------------------------------------------------------------


def from_spec(part: Any, family: str, *, trust: Sequence[str] = ()) -> Any:
    """Make what a part of a spec says.

    Args:
        part: Plain JSON, as `to_spec` gives it.
        family: What it is: `model`, `update`, `schedule`, `loss`, `weight`, `hook`, `metric` or `dataset`.
        trust: Packages, modules or classes that may be imported besides purestep's own.

    Raises:
        SpecError: If it is not such a part, or its target does not take the arguments.
        TrustError: If its target is not trusted.
    """
    if family == "loss" and isinstance(part, dict) and isinstance(part.get("loss"), list):
        terms = [from_spec({key: value for key, value in one.items() if key != "weight"}, "loss", trust=trust) for one in part["loss"]]
        weights = [one.get("weight", 1.0) for one in part["loss"]]
        made = [from_spec(weight, "weight") if isinstance(weight, dict) else weight for weight in weights]
        return ComposedLoss(terms, weights=made, normalize_weights=part.get("normalize_weights", True))
    if family == "dataset" and isinstance(part, dict) and part.keys() == {"dataset", "runtime"}:
        return loader_from_spec(part)
    if isinstance(part, dict) and "cls_path" in part and family in _ROLES:
        return call_target(_validated(Target, part), "", trust, _ROLES[family])
    kind = part.get("kind") if isinstance(part, dict) else None
    if kind not in MODELS.get(family, {}):
        raise SpecError(f"{part!r} is no {family}: expected an object with a kind of that family, or a cls_path")
    try:
        return make(_validated(MODELS[family][kind], part), "", trust=trust)
    except PartError as error:
        raise SpecError(error.problem.text()) from error


def _validated(model: Any, part: Any) -> Any:
    try:
        return TypeAdapter(model).validate_json(dump(part))
    except ValidationError as failure:
        raise SpecError("\n".join(problem.text() for problem in problems_of(failure, part))) from failure


def check_rebuildable(thing: Any, trust: Sequence[str] = ()) -> Any:
    """Prove, before a run starts, that it can be made again from its recipe: same parameters, terms, data.

    Returns:
        The recipe.

    Raises:
        SpecError: If it cannot.
    """
    spec = to_spec(thing)
    if isinstance(thing, nn.Module):
        with torch.random.fork_rng(devices=[]):
            again = from_spec(spec, "model", trust=[*trust, spec["cls_path"]])
        _compare(_shapes(thing), _shapes(again), spec["cls_path"])
    elif isinstance(thing, Composable):
        again = from_spec(spec, "loss", trust=trust)
        if to_spec(again) != spec:
            raise SpecError(f"the loss comes back as {to_spec(again)}, from the recipe {spec}")
    elif isinstance(thing, Loader) and from_spec(spec, "dataset").fingerprint != thing.fingerprint:
        raise SpecError(f"the data comes back with another fingerprint from the recipe {spec}")
    return spec


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _compare(one: dict[str, tuple[int, ...]], two: dict[str, tuple[int, ...]], path: str) -> None:
    different = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if different:
        name = different[0]
        message = (
            f"its recipe gives another model: {len(different)} weights differ, {name} is {one.get(name)} here and {two.get(name)} there"
        )
        raise SpecError(Problem("PS504", "", f"{path}: {message}; does it keep its arguments unchanged?").text())
