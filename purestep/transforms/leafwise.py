"""Arithmetic on lists of leaves, one call for the whole list where torch has one.

`torch._foreach_*` saves most of the time of an eager update of many small leaves. Those functions have no rule under `vmap`, and no
usable derivative, so there each leaf has a call of its own, with the same result; the same while `torch.compile` traces, which
fuses by itself. Lists may be empty. A 0-d tensor in place of a list stands for a number, and never widens a leaf.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Leaves = list[Tensor]
Operand = Sequence[Tensor] | Tensor | float


def _foreach_works(*operands: Operand) -> bool:
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return False
    if not torch.is_grad_enabled():
        return True
    tensors = (x for operand in operands for x in (operand if isinstance(operand, list) else [operand]))
    return not any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def _binary(one: Callable, many: Callable, many_by_scalar: Callable | None = None) -> Callable[[Leaves, Operand], Leaves]:
    def call(xs: Leaves, y: Operand) -> Leaves:
        if not xs:
            return []
        if isinstance(y, Tensor):
            return _with_scalar(one, many_by_scalar, xs, y)
        if _foreach_works(xs, y):
            return list(many(xs, y))
        return [one(x, item) for x, item in zip(xs, y if isinstance(y, list) else [y] * len(xs), strict=True)]

    return call


def _with_scalar(one: Callable, many: Callable | None, xs: Leaves, y: Tensor) -> Leaves:
    scalars = {dtype: y.to(dtype) for dtype in {x.dtype for x in xs}}
    if many is not None and len(scalars) == 1 and _foreach_works(xs, y):
        return list(many(xs, scalars[xs[0].dtype]))
    return [one(x, scalars[x.dtype]) for x in xs]


def _unary(one: Callable, many: Callable) -> Callable[[Leaves], Leaves]:
    def call(xs: Leaves) -> Leaves:
        return list(many(xs)) if xs and _foreach_works(xs) else [one(x) for x in xs]

    return call


# The overload for a 0-d tensor is named: left to choose, torch would read the tensor's value on the host.
add = _binary(torch.add, torch._foreach_add, torch.ops.aten._foreach_add.Tensor)
sub = _binary(torch.sub, torch._foreach_sub)
mul = _binary(torch.mul, torch._foreach_mul, torch.ops.aten._foreach_mul.Tensor)
div = _binary(torch.div, torch._foreach_div, torch.ops.aten._foreach_div.Tensor)
maximum = _binary(torch.maximum, torch._foreach_maximum)
sqrt = _unary(torch.sqrt, torch._foreach_sqrt)
abs = _unary(torch.abs, torch._foreach_abs)
sign = _unary(torch.sign, torch._foreach_sign)


def lerp(xs: Leaves, ys: Leaves, weight: float | Tensor) -> Leaves:
    """`x + weight (y - x)`."""
    if isinstance(weight, Tensor):
        return add(xs, mul(sub(ys, xs), weight))
    if xs and _foreach_works(xs, ys):
        return list(torch._foreach_lerp(xs, ys, weight))
    return [torch.lerp(x, y, weight) for x, y in zip(xs, ys, strict=True)]


def cast(xs: Leaves, dtypes: torch.dtype | Sequence[torch.dtype]) -> Leaves:
    """Convert each leaf to a dtype, one for all or one each; leaves that have it stay the same object."""
    each = [dtypes] * len(xs) if isinstance(dtypes, torch.dtype) else dtypes
    return [x if x.dtype == dtype else x.to(dtype) for x, dtype in zip(xs, each, strict=True)]


def largest(xs: Leaves) -> Tensor:
    """Largest magnitude in each leaf, shape `(len(xs),)`, float64; NaN where a leaf holds one, 0 for an empty leaf."""
    filled = [x if x.numel() else x.new_zeros(1) for x in xs]
    if _foreach_works(filled):
        norms = list(torch._foreach_norm(filled, float("inf")))
    else:
        norms = [torch.linalg.vector_norm(x, float("inf")) for x in filled]
    return torch.stack([norm.double() for norm in norms])
