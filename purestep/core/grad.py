"""Value and gradient of a function of a tree, by two engines with the same result.

`autograd` differentiates fresh leaves with `torch.autograd.grad`: it works for models that call autograd themselves (most
interatomic potentials do) and is the faster one in eager mode. `func` is `torch.func.grad_and_value`: it composes with `vmap`, and
is what Dynamo can trace whole. `auto` takes `func` where it must, else `autograd`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch._functorch.eager_transforms as functorch
from torch import Tensor

from . import tree
from .tree import Tree

Engine = Literal["auto", "autograd", "func"]
ENGINES: tuple[Engine, ...] = ("auto", "autograd", "func")


class Gradient(NamedTuple):
    """Value, auxiliary output and gradient of a function at a point."""

    value: Tensor
    aux: Tree
    grads: Tree
    unreached: tuple[str, ...]
    """Paths of leaves that the value does not depend on; their gradient is zero. Dynamo cannot tell, and finds none."""


class Gradients(NamedTuple):
    """The same of several values of one function."""

    values: list[Tensor]
    aux: Tree
    grads: list[Tree]
    """One for each value."""
    unreached: tuple[str, ...]
    """Paths of leaves that no value depends on."""


def runs_transformed() -> bool:
    """Whether Dynamo traces this code, or a `torch.func` transform is at work around it."""
    return torch.compiler.is_dynamo_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def value_and_grad(fn: Callable[[Tree], tuple[Tensor, Tree]], params: Tree, engine: Engine = "auto") -> Gradient:
    """Differentiate `fn(params) -> (0-d value, aux)` with respect to every leaf of `params`.

    Args:
        fn: Pure. `aux` is a tree; its tensors come back detached.
        params: Floating-point leaves; neither they nor their `requires_grad` are changed.
        engine: Which engine; forced, or chosen by where this runs.

    Raises:
        ValueError: If the value is not 0-d, or depends on none of the leaves.
    """

    def listed(params: Tree) -> tuple[list[Tensor], Tree]:
        value, aux = fn(params)
        return [value], aux

    (value,), aux, (grads,), unreached = values_and_grads(listed, params, engine)
    return Gradient(value, aux, grads, unreached)


def values_and_grads(fn: Callable[[Tree], tuple[list[Tensor], Tree]], params: Tree, engine: Engine = "auto") -> Gradients:
    """As `value_and_grad`, for a function of several values: it runs once, and backward once for each value.

    Raises:
        ValueError: If a value is not 0-d, or none depends on any of the leaves.
    """
    leaves, spec = tree.flatten(params)
    side_door: list[Any] = []  # functorch returns tensors only: structure and other leaves leave by here

    def flat_fn(flat: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values, aux = fn(tree.unflatten(spec, flat))
        for value in values:
            _check_value(value)
        parts, aux_spec = tree.flatten(aux)
        side_door[:] = [aux_spec, [None if isinstance(part, Tensor) else part for part in parts]]
        # what needs no gradient stays the object it is: a captured graph then knows that nothing has happened to it
        return values, [part.detach() if part.requires_grad else part for part in parts if isinstance(part, Tensor)]

    if torch.compiler.is_dynamo_compiling():
        values, slopes, tensors = _by_dynamo(flat_fn, leaves)
    elif engine == "func" or (engine == "auto" and runs_transformed()):
        values, slopes, tensors = _by_func(flat_fn, leaves)
    else:
        values, slopes, tensors = _by_autograd(flat_fn, leaves)
    nowhere = [i for i in range(len(leaves)) if all(slope[i] is None for slope in slopes)]
    paths = tree.paths(params) if nowhere else []
    filled = [[torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, slope, strict=True)] for slope in slopes]
    aux_spec, others = side_door
    rest = iter(tensors)
    aux = tree.unflatten(aux_spec, [next(rest) if other is None else other for other in others])
    return Gradients(values, aux, [tree.unflatten(spec, grads) for grads in filled], tuple(paths[i] for i in nowhere))


def _check_value(value: Tensor) -> None:
    if not isinstance(value, Tensor) or value.ndim != 0:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a 0-d tensor, got {got}; reduce it (mean, or a sum divided by a count)")


_FlatFn = Callable[[list[Tensor]], tuple[list[Tensor], list[Tensor]]]
_Found = tuple[list[Tensor], list[Sequence[Tensor | None]], list[Tensor]]  # values, slopes of each, tensors of aux


def _by_dynamo(flat_fn: _FlatFn, leaves: list[Tensor]) -> _Found:
    values, pull, tensors = torch.func.vjp(flat_fn, leaves, has_aux=True)  # type: ignore[misc]
    seeds = [[torch.ones_like(v) if i == j else torch.zeros_like(v) for i, v in enumerate(values)] for j in range(len(values))]
    return values, [pull(seed)[0] for seed in seeds], tensors


def _by_autograd(flat_fn: _FlatFn, leaves: list[Tensor]) -> _Found:
    with torch.enable_grad():
        values, slopes, tensors = _differentiate(flat_fn, [leaf.detach().requires_grad_() for leaf in leaves], create_graph=False)
    return [value.detach() for value in values], slopes, tensors


def _by_func(flat_fn: _FlatFn, leaves: list[Tensor]) -> _Found:
    """`torch.func.grad_and_value`, except that a leaf which a value does not depend on has the gradient None."""
    # the public function fills such gradients with zeros before anybody can see the difference
    with functorch.grad_increment_nesting() as level, torch.enable_grad():
        fresh = [functorch._create_differentiable(leaf, level) for leaf in functorch._wrap_all_tensors(leaves, level)]
        values, slopes, tensors = _differentiate(flat_fn, fresh, create_graph=True)
        out = lambda x: functorch._undo_create_differentiable((x,), level)[0]  # noqa: E731
        found: list[Sequence[Tensor | None]] = [[None if g is None else out(g) for g in slope] for slope in slopes]
        return [out(value) for value in values], found, [out(x) for x in tensors]


def _differentiate(flat_fn: _FlatFn, fresh: list[Tensor], create_graph: bool) -> _Found:
    values, tensors = flat_fn(fresh)
    live = [value for value in values if value.requires_grad]
    if not live:
        raise ValueError("the loss depends on no trainable parameter; is the model called, and is nothing detached or under no_grad?")

    def slope(value: Tensor) -> Sequence[Tensor | None]:
        if not value.requires_grad:
            return [None] * len(fresh)
        keep = create_graph or value is not live[-1]
        return torch.autograd.grad(value, fresh, allow_unused=True, retain_graph=keep, create_graph=create_graph)

    return values, [slope(value) for value in values], tensors
