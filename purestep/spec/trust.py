"""Which code a spec may name: what is not purestep's own needs a grant from the command line, since running a spec imports and calls it.

A name is checked before anything is imported, the object that it leads to afterwards: an alias (`logging.os.system`) does not carry a
grant any further than the object's own home. This is a guard against accidents and booby-trapped files, not a sandbox.
"""

import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from .. import models
from ..errors import SpecError, TrustError
from .envelope import Spec, Target
from .problems import Problem, nearest

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


def check_names(spec: Spec, trusted: Sequence[str]) -> None:
    """Check the names of all targets, before anything is imported.

    Args:
        trusted: Packages, modules or classes, by dotted name.

    Raises:
        TrustError: If one is not trusted; all of them are listed.
    """
    check_grants(trusted)
    refused = [(name, target.cls_path) for name, target in spec.strategy.model_specs.items() if not is_trusted(target.cls_path, trusted)]
    if refused:
        raise TrustError("\n".join(_refusal(f"/strategy/model_specs/{name}/cls_path", path) for name, path in refused))


def _refusal(pointer: str, path: str) -> str:
    home = path.rpartition(".")[0]
    problem = Problem(
        "PS501",
        pointer,
        f"'{path}' is outside the trusted targets. Running a spec imports and calls what it names; if you wrote or read that code: "
        f"--trust {home}",
    )
    return problem.text()


def call_target(target: Target, pointer: str, trusted: Sequence[str]) -> nn.Module:
    """Import a target, check what it really is, and call it.

    Raises:
        TrustError: If its name, or the object that the name leads to, is not trusted.
        SpecError: If it cannot be imported, is no class of modules, or does not take the arguments.
    """
    path = target.cls_path
    if not is_trusted(path, trusted):
        raise TrustError(_refusal(f"{pointer}/cls_path", path))
    found = _import(path, pointer)
    if path not in own_names() and path not in trusted:  # an exact grant covers a re-export
        home = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
        if not is_trusted(home, trusted):
            raise TrustError(f"{_refusal(f'{pointer}/cls_path', home)} ('{path}' is another name of it)")
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise _error("PS503", f"{pointer}/cls_path", f"'{path}' is not a class of torch.nn.Module but {type(found).__name__}")
    return _call(found, target.arguments, pointer)


def _import(path: str, pointer: str) -> Any:
    *parts, name = path.split(".")
    try:
        found: Any = import_module(parts[0])
        for i, part in enumerate(parts[1:], start=2):
            found = getattr(found, part) if hasattr(found, part) else import_module(".".join(parts[:i]))
        return getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise _error("PS502", f"{pointer}/cls_path", f"'{path}' cannot be imported: {error}") from error


def _call(found: type[nn.Module], arguments: dict[str, Any], pointer: str) -> nn.Module:
    names = inspect.signature(found.__init__).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
    for name in arguments:
        if name not in names and not open_ended:
            known = names.keys() - {"self", "args"}
            raise _error("PS504", f"{pointer}/{name}", f"{found.__name__} has no such argument{nearest(name, known)}")
    try:
        inspect.signature(found).bind(**arguments)
        return found(**arguments)
    except (TypeError, ValueError) as error:
        raise _error("PS504", pointer, f"{found.__name__}: {error}") from error


def _error(code: str, pointer: str, message: str) -> SpecError:
    return SpecError(Problem(code, pointer, message).text())
