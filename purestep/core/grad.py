"""Value and gradient of a function of a tree, by two engines with the same result.

`autograd` differentiates fresh leaves with `torch.autograd.grad`: it works for models that call autograd themselves (most
interatomic potentials do) and is the faster one in eager mode. `func` is `torch.func.grad_and_value`: it composes with `vmap`, and
is what Dynamo can trace whole. `auto` takes `func` where it must, else `autograd`.
"""

from collections.abc import Callable
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
    if engine == "func" or (engine == "auto" and runs_transformed()):
        return _by_func(fn, params)
    return _by_autograd(fn, params)


def _check_value(value: Tensor) -> None:
    if not isinstance(value, Tensor) or value.ndim != 0:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a 0-d tensor, got {got}; reduce it (mean, or a sum divided by a count)")


def _by_autograd(fn: Callable[[Tree], tuple[Tensor, Tree]], params: Tree) -> Gradient:
    leaves, spec = tree.flatten(params)
    with torch.enable_grad():
        fresh = [leaf.detach().requires_grad_() for leaf in leaves]
        value, aux = fn(tree.unflatten(spec, fresh))
        _check_value(value)
        if not value.requires_grad:
            raise ValueError("the loss depends on no trainable parameter; is the model called, and is nothing detached or under no_grad?")
        grads = torch.autograd.grad(value, fresh, allow_unused=True)
    unreached = [path for path, grad in zip(tree.paths(params), grads, strict=True) if grad is None] if None in grads else []
    filled = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]
    detached = tree.map(lambda x: x.detach() if isinstance(x, Tensor) and x.requires_grad else x, aux)
    return Gradient(value.detach(), detached, tree.unflatten(spec, filled), tuple(unreached))


def _by_func(fn: Callable[[Tree], tuple[Tensor, Tree]], params: Tree) -> Gradient:
    leaves, spec = tree.flatten(params)
    side_door: list[Any] = []  # functorch returns tensors only: structure and other leaves leave by here

    def flat_fn(flat: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        value, aux = fn(tree.unflatten(spec, flat))
        _check_value(value)
        parts, aux_spec = tree.flatten(aux)
        side_door[:] = [aux_spec, [None if isinstance(part, Tensor) else part for part in parts]]
        return value, [part.detach() for part in parts if isinstance(part, Tensor)]

    if torch.compiler.is_dynamo_compiling():
        grads, (value, tensors) = torch.func.grad_and_value(flat_fn, has_aux=True)(leaves)
        unreached: list[str] = []
    else:
        value, tensors, found = _one_level(flat_fn, leaves)
        unreached = [path for path, grad in zip(tree.paths(params), found, strict=True) if grad is None] if None in found else []
        grads = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]
    aux_spec, others = side_door
    rest = iter(tensors)
    aux = tree.unflatten(aux_spec, [next(rest) if other is None else other for other in others])
    return Gradient(value, aux, tree.unflatten(spec, grads), tuple(unreached))


def _one_level(fn: Callable, leaves: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """`torch.func.grad_and_value`, except that a leaf which the value does not depend on has the gradient None."""
    # the public function fills such gradients with zeros before anybody can see the difference
    with functorch.grad_increment_nesting() as level, torch.enable_grad():
        fresh = [functorch._create_differentiable(leaf, level) for leaf in functorch._wrap_all_tensors(leaves, level)]
        value, aux = fn(fresh)
        if not value.requires_grad:
            raise ValueError("the loss depends on no trainable parameter; is the model called, and is nothing detached or under no_grad?")
        grads = torch.autograd.grad(value, fresh, allow_unused=True, create_graph=True)
        reached = functorch._undo_create_differentiable(tuple(grad for grad in grads if grad is not None), level)
        value, aux = functorch._undo_create_differentiable((value, aux), level)
    rest = iter(reached)
    return value, aux, [None if grad is None else next(rest) for grad in grads]
