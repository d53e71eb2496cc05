"""Train PyTorch models with pure functions.

The public names live in the modules that define them and are loaded on first use, so that `import purestep` is cheap. Every gradient
transform and every optimizer is a name of this package too; `purestep.transforms` and `purestep.optimizers` list them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "core.transform": ("GradientTransform", "Gated", "chain", "stateless", "stateless_with_tree_map", "apply_updates", "set_hyperparams"),
    "core.selection": ("masked", "partition", "freeze"),
    "core.state": ("TrainState", "Counters"),
    "core.hook": ("Hook", "Stage", "StepContext"),
    "core.event": ("Event", "Stop"),
    "core.loss": ("Sums", "LossTerm", "ComposedLoss", "FunctionTerm", "LossOutput"),
    "core.step": ("make_step", "init_state"),
    "core.epoch": ("end_epoch", "observe"),
    "core.rng": ("fold_in",),
    "training": ("Training",),
    "capture": ("compile",),
    "checkpoint": ("save", "load", "Checkpointer"),
    "data": ("AtomicBatch", "Loader"),
    "loop": ("fit", "FitResult"),
    "validation": ("Validation", "validate"),
    "errors": ("PurestepError",),
}
_MODULES = {"tree": "core.tree", "rng": "core.rng", "errors": "errors"} | {
    name: name
    for name in (
        "transforms",
        "optimizers",
        "schedules",
        "losses",
        "hooks",
        "metrics",
        "models",
        "data",
        "checkpoint",
        "testing",
        "distributed",
        "loop",
        "reporting",
        "spec",
    )
}
_FAMILIES = ("transforms", "optimizers", "losses")
"""Packages all of whose `__all__` are names of this one."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:  # what editors and type checkers see; the same names, loaded at once
    from . import (
        checkpoint,
        data,
        distributed,
        errors,
        hooks,
        losses,
        metrics,
        models,
        optimizers,
        reporting,
        schedules,
        spec,
        testing,
        transforms,
    )
    from .capture import compile
    from .checkpoint import Checkpointer, load, save
    from .core import rng, tree
    from .core.epoch import end_epoch, observe
    from .core.event import Event, Stop
    from .core.hook import Hook, Stage, StepContext
    from .core.loss import ComposedLoss, FunctionTerm, LossOutput, LossTerm, Sums
    from .core.rng import fold_in
    from .core.selection import freeze, masked, partition
    from .core.state import Counters, TrainState
    from .core.step import init_state, make_step
    from .core.transform import Gated, GradientTransform, apply_updates, chain, set_hyperparams, stateless, stateless_with_tree_map
    from .data import AtomicBatch, Loader
    from .errors import PurestepError
    from .loop import FitResult, fit
    from .losses import *
    from .optimizers import *
    from .training import Training
    from .transforms import *
    from .validation import Validation, validate


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{_MODULES[name]}", __name__)
    elif name == "__all__":
        return __dir__()
    elif not name.startswith("_") and (family := _family_of(name)):
        value = getattr(import_module(f".{family}", __name__), name)
    else:
        raise AttributeError(f"module 'purestep' has no attribute {name!r}")
    globals()[name] = value
    return value


def _family_of(name: str) -> str | None:
    return next((family for family in _FAMILIES if name in import_module(f".{family}", __name__).__all__), None)


def __dir__() -> list[str]:
    families = [name for family in _FAMILIES for name in import_module(f".{family}", __name__).__all__]
    return sorted({"__version__", *_HOME, *_MODULES, *families})
