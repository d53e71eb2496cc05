"""Which nodes of a recorded graph work element by element, also as a part of a `_foreach` operation."""

import functools
import operator
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
# these move the statistics they are given, though their schemas do not say so
SECRET_WRITERS = {aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default}
_OVERLOADS = {"Scalar": "Scalar", "List": "Tensor", "Tensor": "Tensor", "default": "default"}


def is_part(node: Any) -> bool:
    """Whether a value is one of those of a `_foreach` operation that has an element-wise form."""
    return isinstance(node, fx.Node) and node.target is operator.getitem and elementwise(node.args[0]) is not None


def elementwise(node: Any) -> Any:
    """The element-wise operation that a `_foreach` operation applies to each leaf, or None."""
    return _of_each(node.target) if isinstance(node.target, torch._ops.OpOverload) and not node.kwargs else None


@functools.cache
def _of_each(target: torch._ops.OpOverload) -> Any:
    name = target._schema.name
    if not name.startswith("aten::_foreach_"):
        return None
    packet, overload = getattr(aten, name.removeprefix("aten::_foreach_"), None), _OVERLOADS.get(target._overloadname, "")
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


def is_pointwise(node: fx.Node) -> bool:
    """Whether a value is computed element by element from the arguments of its node, none of which is named."""
    return _is_tagged(node) and not node.kwargs


def _is_tagged(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags and not target._schema.is_mutable


def has_shape(node: Any, shape: Any) -> bool:
    """Whether an argument is a tensor of this shape."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor) and node.meta["val"].shape == shape


# of these each element is that of the first argument, or a constant
_LIKE = {aten.detach.default, aten.alias.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default}


def operation(node: fx.Node) -> tuple[Any, list[Any], dict[str, Any]] | None:
    """What computes a value element by element, with its arguments; None where it is computed otherwise.

    A part of a `_foreach` operation is computed by that for one leaf.
    """
    if is_part(node):
        source: Any = node.args[0]
        arguments = [arg[node.args[1]] if isinstance(arg, list | tuple) else arg for arg in source.args]  # type: ignore[index]
        return elementwise(source), arguments, {}
    if any(isinstance(arg, fx.Node) for arg in node.kwargs.values()):
        return None
    if _is_tagged(node) or node.target in _LIKE or (node.target is aten._to_copy.default and list(node.kwargs) == ["dtype"]):
        return node.target, list(node.args), dict(node.kwargs)
    return None
