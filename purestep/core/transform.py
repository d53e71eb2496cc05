"""What a gradient transform is, how transforms chain, and what a gate's verdict does to the rest of the chain.

A transform is optax's pair of pure functions. A gate is a transform whose `update` returns `Gated`: its verdict decides whether the
updates reach the parameters. `transforms/` holds the transforms themselves, `selection.py` says which leaves they see.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import TransformError
from . import tree
from .schedule import Hyperparam
from .tree import Tree


class GradientTransform(NamedTuple):
    """A pair of pure functions, and what the chain must know about them.

    `init(params) -> state`; `update(updates, state, params=None, **extra) -> (updates, state)`. `updates` has the structure of
    `params`; a gate returns `Gated` in its place. Neither function changes its inputs. `**extra` must be there: the step passes more
    than most transforms use (`value`, the loss; `counters`; ...), and what a transform does not know it ignores. `name` is where an
    enclosing chain keeps the state, and what metrics are called after. `ps.testing.check_transform` says whether the laws hold; a
    transform without memory is shorter as `ps.stateless(fn)`.

    Example:
        >>> def shrink_every_time(factor):
        ...     def update(updates, scale, params=None, **extra):
        ...         return ps.tree.map(lambda u: scale * u, updates), factor * scale
        ...     return ps.GradientTransform(lambda params: torch.tensor(1.0), update, name="shrink_every_time")
        >>> ps.chain(shrink_every_time(0.5), ps.sgd(0.1)).init({"w": torch.ones(3)})["shrink_every_time"]
        tensor(1.)
    """

    init: Callable[[Tree], Any]
    update: Callable[..., tuple[Any, Any]]
    name: str
    needs: frozenset[str] = frozenset()
    """Extra arguments that `update` cannot do without."""
    scale_loss: Callable[[Tensor, Any], Tensor] | None = None
    """`scale_loss(loss, state) -> loss`, applied before the gradient is taken."""
    parts: tuple["GradientTransform", ...] = ()
    """Of a chain: what it runs, in order."""
    same_on_all_ranks: frozenset[str] = frozenset()
    """What leaves it alike on every rank: `"verdict"` (a gate that looks at counts only), `"updates"` (a sum over ranks)."""


class Gated(NamedTuple):
    """What a gate returns in place of plain updates: the updates and its verdict."""

    updates: Tree
    apply: Tensor
    """0-d bool. False: nothing reaches the parameters this time."""
    reject: Tensor
    """0-d bool. True: the batch itself is bad, buffers and hook states are held as well."""


class EmptyState(NamedTuple):
    """State of a transform without memory."""


def describe_mistake(found: Any) -> str:
    """Words for an error: what was given in the place of a transform, and how to make one of it."""
    if isinstance(found, (list, tuple)):
        return f"a {type(found).__name__}; give the parts one after another: chain(*parts)"
    if isinstance(found, FunctionType):
        return f"the function {found.__name__}; call it: {found.__name__}(...)"
    if isinstance(found, torch.optim.Optimizer):
        return f"torch's {type(found).__name__}, which changes parameters in place; take the one of this package"
    return f"{found!r}"


def chain(*parts: GradientTransform, name: str = "chain") -> GradientTransform:
    """Run transforms in order; itself a transform, with state `{part name: state}`.

    Once a gate says no, every later part keeps its state bitwise, the updates become -0.0 (`p + (-0.0)` is `p`, bit for bit) and
    the chain returns `Gated`. A chain without gates pays nothing for this rule.

    Args:
        parts: In order of execution. A second part of one name is stored under `name_2`.
        name: Under which an enclosing chain keeps the state, and metrics are reported.

    Raises:
        TransformError: If a part is no transform; in `update`, if an extra argument that a part needs is missing.
    """
    for part in parts:
        if not isinstance(part, GradientTransform):
            raise TransformError(
                f"{name}: parts are gradient transforms such as ps.adam(1e-3), one argument each, got {describe_mistake(part)}"
            )
    names = part_names(parts)
    needs = frozenset().union(*(part.needs for part in parts))
    scalers = tuple((key, part.scale_loss) for key, part in zip(names, parts, strict=True) if part.scale_loss is not None)

    def init(params: Tree) -> dict[str, Any]:
        return {key: part.init(params) for key, part in zip(names, parts, strict=True)}

    def update(updates: Tree, state: dict[str, Any], params: Tree = None, **extra: Any) -> tuple[Any, dict[str, Any]]:
        check_needs(name, needs, extra)
        if set(state) != set(names):
            raise TransformError(
                f"{name}: the state has parts {sorted(state)}, the chain has {sorted(names)}; was it made by another chain?"
            )
        apply: Tensor | None = None
        reject: Tensor | None = None
        new_state = {}
        for key, part in zip(names, parts, strict=True):
            updates, new = part.update(updates, state[key], params, **extra)
            new_state[key] = new if apply is None else tree.where(apply, new, state[key])
            if isinstance(updates, Gated):
                updates, may, bad = updates
                if "ranks" in extra and "verdict" not in part.same_on_all_ranks:
                    may, bad = extra["ranks"].agree(may, bad)
                apply, reject = (may, bad) if apply is None or reject is None else (apply & may, reject | (apply & bad))
            if "updates" in part.same_on_all_ranks:  # from here on all ranks see the same, and come to the same verdicts
                extra.pop("ranks", None)
        return (updates if apply is None or reject is None else Gated(silence(updates, apply), apply, reject)), new_state

    def scale_loss(loss: Tensor, state: dict[str, Any]) -> Tensor:
        for key, scale in scalers:
            loss = scale(loss, state[key])
        return loss

    alike = frozenset({"verdict"}).union(*(part.same_on_all_ranks for part in parts))
    return GradientTransform(init, update, name, needs, scale_loss if scalers else None, parts, alike)


def part_names(parts: Sequence[GradientTransform]) -> tuple[str, ...]:
    """Under which a chain keeps the states of its parts; the second of one name is `name_2`."""
    names = [part.name for part in parts]
    earlier = [names[:i].count(name) for i, name in enumerate(names)]
    return tuple(f"{name}_{count + 1}" if count else name for name, count in zip(names, earlier, strict=True))


def silence(updates: Tree, apply: Tensor) -> Tree:
    """The updates where `apply` holds, else -0.0, which leaves every parameter bitwise as it is."""
    return tree.map(lambda u: torch.where(apply, u, torch.full_like(u, -0.0)), updates)


def check_needs(name: str, needs: frozenset[str], extra: Mapping[str, Any]) -> None:
    """Raise if an extra argument is missing, before any work.

    Raises:
        TransformError: Naming all that are missing.
    """
    if missing := sorted(needs.difference(extra)):
        raise TransformError(f"{name} needs {', '.join(missing)}: pass {', '.join(f'{key}=...' for key in missing)} to update")


def check_takes_extra(transform: GradientTransform) -> None:
    """Raise if an `update` has no `**extra`, before the step passes it an argument that it does not know.

    Raises:
        TransformError: Naming the part, and what to write.
    """
    for part in transform.parts:
        check_takes_extra(part)
    if transform.parts:
        return
    try:
        arguments = inspect.signature(transform.update).parameters.values()
    except (TypeError, ValueError):  # something callable of which Python does not know the arguments
        return
    if not any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments):
        raise TransformError(
            f"{transform.name}: update must accept **extra, since the step passes more than it uses (value, counters, ...); "
            "write update(updates, state, params=None, **extra)"
        )


def stateless(fn: Callable[[Tree, Tree], Tree], name: str = "stateless") -> GradientTransform:
    """Make a transform without memory from `fn(updates, params) -> updates`."""

    def update(updates: Tree, state: EmptyState, params: Tree = None, **extra: Any) -> tuple[Tree, EmptyState]:
        return fn(updates, params), state

    return GradientTransform(lambda params: EmptyState(), update, name)


def stateless_with_tree_map(fn: Callable[[Tensor, Tensor], Tensor], name: str = "stateless") -> GradientTransform:
    """Make a transform without memory from `fn(update, parameter) -> update`, which is called for each leaf."""
    return stateless(lambda updates, params: tree.map(fn, updates, params), name)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Add updates to parameters, in the wider dtype of the two, rounded once to the parameter's.

    Args:
        updates: Structure of `params`, or `Gated` around it (its updates are already silent where the verdict was no).
    """
    if isinstance(updates, Gated):
        updates = updates.updates
    return tree.map(lambda p, u: torch.add(p, u).to(p.dtype), params, updates)


# --- looking into states ------------------------------------------------------------------------------------------


def children(state: Any) -> Iterator[tuple[str, Any]]:
    """Names and values one level down: of dicts, NamedTuples, sequences and nodes."""
    if isinstance(state, Mapping):
        yield from state.items()
    elif hasattr(state, "_fields"):
        yield from ((field, getattr(state, field)) for field in state._fields)
    elif hasattr(state, "__dataclass_fields__"):
        yield from ((field, getattr(state, field)) for field in state.__dataclass_fields__)
    elif isinstance(state, list | tuple):
        yield from ((str(i), value) for i, value in enumerate(state))


def rebuild(state: Any, new: Mapping[str, Any]) -> Any:
    """The state with these children, by the names of `children`; the same object if none has changed."""
    if all(new[key] is child for key, child in children(state)):
        return state
    if isinstance(state, Mapping):
        return dict(new)
    if hasattr(state, "_replace"):
        return state._replace(**new)
    if hasattr(state, "__dataclass_fields__"):
        return dataclasses.replace(state, **new)
    return type(state)(new.values())


def collect_metrics(state: Any, name: str, kind: str = "optimizer") -> dict[str, Tensor]:
    """Gather what the parts of a state report through their `metrics`.

    A metric is called `optimizer/<name>/<metric>`, where `<name>` is the chain that holds the part (`adamw`), or the part itself when
    that chain bears no name of its own. A metric whose name already has a slash is taken as it is.
    """
    found: dict[str, Tensor] = {}

    def visit(node: Any, path: tuple[str, ...]) -> None:
        own = getattr(node, "metrics", None)
        if isinstance(own, Mapping):
            named = [key for key in path if key != "chain"]
            for key, value in own.items():
                full = key if "/" in key else "/".join((kind, *(named[:-1] or named[-1:]), key))
                found[full] = value
        for key, child in children(node):
            if key != "metrics" and not isinstance(child, Tensor):
                visit(child, (*path, key))

    visit(state, (name,))
    return found


def set_hyperparams(opt_state: Tree, **values: float | Tensor) -> Tree:
    """Replace hyperparameters in a state; shapes and dtypes stay, so nothing is captured anew.

    Args:
        values: New values by name (`learning_rate=3e-4`); every hyperparameter of that name is set. A name may be a path with
            double underscores for dots (`muon__learning_rate`) to single one out.

    Raises:
        KeyError: If no hyperparameter has that name; the known ones are listed.
        ValueError: If one is driven by a schedule.
    """
    known = dict(_hyperparams(opt_state, ()))
    chosen: dict[tuple[str, ...], float | Tensor] = {}
    for name, value in values.items():
        wanted = tuple(name.split("__"))
        hits = [path for path in known if path[-1] == wanted[-1] and all(part in path for part in wanted)]
        if not hits:
            raise KeyError(f"no hyperparameter {name!r} in this state; it has {sorted({'.'.join(path) for path in known})}")
        if scheduled := [path for path in hits if isinstance(known[path].num_updates, Tensor)]:
            raise ValueError(f"{'.'.join(scheduled[0])} is driven by a schedule; give a number to the optimizer to set it by hand")
        chosen |= dict.fromkeys(hits, value)
    return _replace(opt_state, (), chosen)


def _hyperparams(state: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Hyperparam]]:
    if isinstance(state, Hyperparam):
        yield path, state
        return
    for key, child in children(state):
        yield from _hyperparams(child, (*path, key))


def _replace(state: Any, path: tuple[str, ...], chosen: dict[tuple[str, ...], float | Tensor]) -> Any:
    if isinstance(state, Hyperparam):
        if path not in chosen:
            return state
        value = torch.as_tensor(chosen[path], dtype=torch.float64, device=state.value.device)
        if value.shape != state.value.shape:
            raise ValueError(f"{'.'.join(path)} has shape {tuple(state.value.shape)}, got a value of shape {tuple(value.shape)}")
        return state._replace(value=value.clone())
    if not any(where[: len(path)] == path for where in chosen):
        return state
    return rebuild(state, {key: _replace(child, (*path, key), chosen) for key, child in children(state)})
