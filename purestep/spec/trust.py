"""Which code a spec may name: what is not purestep's own needs a grant from the command line, since running a spec imports and calls it.

A name is checked before anything is imported, the object that it leads to afterwards: an alias (`logging.os.system`) does not carry a
grant any further than the object's own home. This is a guard against accidents and booby-trapped files, not a sandbox.
"""

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import models
from ..core.hook import Hook
from ..core.loss import LossTerm
from ..core.schedule import Schedule
from ..core.transform import GradientTransform
from ..errors import PurestepError, SpecError, TrustError
from ..metrics import Metric
from .envelope import Spec
from .problems import Problem, nearest
from .target import Target, targets_in

GROUP = "purestep.components"
"""Entry points of this group are trusted: somebody installed the distribution that has them."""

_TORCH = ("Bilinear", "Embedding", "Identity", "LSTM", "GRU", "Linear", "MultiheadAttention", "RNN", "TransformerEncoderLayer")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def own_names() -> frozenset[str]:
    """The targets that need no grant."""
    ours = (f"{models.__name__}.{name}" for name in models.__all__)
    installed = (point.value.replace(":", ".") for point in entry_points(group=GROUP))
    return frozenset([*ours, *(f"torch.nn.{name}" for name in _TORCH), *installed])


def check_grants(trusted: Sequence[str]) -> None:
    """Refuse grants that are no dotted names, `*` among them.

    Raises:
        TrustError: With the grant.
    """
    for grant in trusted:
        if not _DOTTED.fullmatch(grant):
            raise TrustError(f"--trust {grant}: give a package, a module, or the full name of a class; there is no grant for everything")


def is_trusted(name: str, trusted: Sequence[str]) -> bool:
    """Whether a dotted name may be imported."""
    return name in own_names() or any(name == grant or name.startswith(f"{grant}.") for grant in trusted)


class Role(NamedTuple):
    """What a target has to be at its place; nothing else is called."""

    makes: Any
    """What it returns, or is a class of."""
    words: str
    functions: bool
    """Whether a function that declares to return it will do."""
    alias: Any = None
    """The type of functions that `makes` stands for: what is declared to return it will do, and so will a class of such functions."""


MODULE = Role(nn.Module, "a class of torch.nn.Module", False)
TERM = Role(LossTerm, "a class of purestep.LossTerm, or a function declared to return one (`-> LossTerm`)", True)
HOOK = Role(Hook, "a function declared to return a hook (`-> purestep.Hook`)", True)
TRANSFORM = Role(GradientTransform, "a function declared to return a transform (`-> purestep.GradientTransform`)", True)
SCHEDULE = Role(
    Callable,
    "a function declared to return a schedule (`-> purestep.schedules.Schedule`), or a class whose `__call__` declares `-> Tensor`",
    True,
    Schedule,
)
METRIC = Role(Metric, "a class of purestep.metrics.Metric, or a function declared to return one (`-> Metric`)", True)


def targets_of(spec: Spec) -> Iterator[tuple[str, Target]]:
    """Pointer and target of everything that a spec imports."""
    strategy = spec.strategy
    yield from ((f"/strategy/model_specs/{name}", target) for name, target in strategy.model_specs.items())
    for name in ("loss", "update", "schedule", "hooks"):
        yield from targets_in(getattr(strategy, name), f"/strategy/{name}")
    yield from targets_in(spec.validation.metrics if spec.validation is not None else (), "/validation/metrics")


def check_names(spec: Spec, trusted: Sequence[str]) -> None:
    """Check the names of all targets, before anything is imported.

    Args:
        trusted: Packages, modules or classes, by dotted name.

    Raises:
        TrustError: If one is not trusted; all of them are listed.
    """
    check_grants(trusted)
    refused = [(pointer, target.cls_path) for pointer, target in targets_of(spec) if not is_trusted(target.cls_path, trusted)]
    if refused:
        raise TrustError("\n".join(_refusal(f"{pointer}/cls_path", path) for pointer, path in refused))


def _refusal(pointer: str, path: str) -> str:
    home = path.rpartition(".")[0]
    problem = Problem(
        "PS501",
        pointer,
        f"'{path}' is outside the trusted targets. Running a spec imports and calls what it names; if you wrote or read that code: "
        f"--trust {home}",
    )
    return problem.text()


def call_target(target: Target, pointer: str, trusted: Sequence[str], role: Role = MODULE) -> Any:
    """Import a target, check what it really is, and call it.

    Raises:
        TrustError: If its name, or the object that the name leads to, is not trusted.
        SpecError: If it cannot be imported, is not what its place asks for, or does not take the arguments.
    """
    path = target.cls_path
    if not is_trusted(path, trusted):
        raise TrustError(_refusal(f"{pointer}/cls_path", path))
    found = _import(path, pointer)
    if path not in own_names() and path not in trusted:  # an exact grant covers a re-export
        home = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
        if not is_trusted(home, trusted):
            raise TrustError(f"{_refusal(f'{pointer}/cls_path', home)} ('{path}' is another name of it)")
    if not _fits(found, role):
        raise _error("PS503", f"{pointer}/cls_path", f"'{path}' is not {role.words} but {type(found).__name__}")
    made = _call(found, target.arguments, pointer)
    if not isinstance(made, role.makes):
        raise _error("PS503", f"{pointer}/cls_path", f"'{path}' returned {type(made).__name__}, not {role.makes.__name__}")
    return made


def _fits(found: Any, role: Role) -> bool:
    """Whether something is what a place asks for, as far as can be said without calling it."""
    if inspect.isclass(found):
        return issubclass(found, role.makes) and (role.alias is None or _declared(found.__call__) is Tensor)
    if not (role.functions and inspect.isfunction(found)):
        return False
    declared = _declared(found)
    return (role.alias is not None and declared == role.alias) or (inspect.isclass(declared) and issubclass(declared, role.makes))


def _declared(function: Any) -> Any:
    """What a function says that it returns."""
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None


def _import(path: str, pointer: str) -> Any:
    *parts, name = path.split(".")
    try:
        found: Any = import_module(parts[0])
        for i, part in enumerate(parts[1:], start=2):
            found = getattr(found, part) if hasattr(found, part) else import_module(".".join(parts[:i]))
        return getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise _error("PS502", f"{pointer}/cls_path", f"'{path}' cannot be imported: {error}") from error


def _call(found: Any, arguments: dict[str, Any], pointer: str) -> Any:
    if (problem := _argument_problem(found, arguments, pointer)) is not None:
        raise SpecError(problem.text())
    try:
        return found(**arguments)
    except (TypeError, ValueError, PurestepError) as error:
        raise SpecError(_refused(found, error, pointer).text()) from error


def _refused(found: Any, error: Exception, pointer: str) -> Problem:
    """What a target says against the values of its arguments."""
    name, text = found.__name__, str(error)
    return Problem("PS504", pointer, text if text.startswith(f"{name}: ") else f"{name}: {text}")


def _argument_problem(found: Any, arguments: Mapping[str, Any], pointer: str) -> Problem | None:
    """What the signature of a target says against the arguments; nothing is called."""
    names = inspect.signature(found.__init__ if inspect.isclass(found) else found).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
    for name in arguments:
        if name not in names and not open_ended:
            known = names.keys() - {"self", "args"}
            return Problem("PS504", f"{pointer}/{name}", f"{found.__name__} has no such argument{nearest(name, known)}")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        return Problem("PS504", pointer, f"{found.__name__}: {error}")
    return None


def problems_of_own_models(spec: Spec) -> Iterator[Problem]:
    """What is wrong with models that claim to be of purestep: a name that it does not have, arguments that they do not take.

    They are made without storage. Nothing is imported that is not there already, so this can be said before anything is trusted.
    """
    package = models.__name__.partition(".")[0]
    for name, target in spec.strategy.model_specs.items():
        pointer, (home, _, own) = f"/strategy/model_specs/{name}", target.cls_path.rpartition(".")
        if home.partition(".")[0] != package:
            continue
        if home == models.__name__ and own in models.__all__:
            problem = _problem_of_own_model(getattr(models, own), target.arguments, pointer)
        else:
            problem = None if hasattr(sys.modules.get(home), own) else _no_such_model(target.cls_path, f"{pointer}/cls_path")
        if problem is not None:
            yield problem


def _problem_of_own_model(found: Any, arguments: dict[str, Any], pointer: str) -> Problem | None:
    problem = _argument_problem(found, arguments, pointer)
    if problem is not None or not inspect.isclass(found):
        return problem
    try:
        with torch.device("meta"):
            found(**arguments)
    except (TypeError, ValueError, OverflowError, RuntimeError, PurestepError) as error:  # torch refuses sizes by RuntimeError
        return _refused(found, error, pointer)
    return None


def _no_such_model(path: str, pointer: str) -> Problem:
    known = {name.lower(): name for name in models.__all__}
    close = get_close_matches(path.rpartition(".")[2].lower(), known, 1)
    full = [f"'{models.__name__}.{name}'" for name in models.__all__ if inspect.isclass(getattr(models, name))]
    hint = f"; did you mean '{models.__name__}.{known[close[0]]}'?" if close else f" (known: {', '.join(full)})"
    return Problem("PS502", pointer, f"purestep has no '{path}'{hint}")


def _error(code: str, pointer: str, message: str) -> SpecError:
    return SpecError(Problem(code, pointer, message).text())
