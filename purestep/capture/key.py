"""What a captured graph relies on and does not check itself: the key under which it is kept."""

import enum
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..errors import CaptureError

# Keys are built at every call, so they are plain tuples: one of a tensor takes a quarter of a microsecond.


def kind(leaf: Any) -> tuple:
    """Shape, strides, dtype and device of a tensor; type and value of anything else, which is a constant of the graph.

    Raises:
        CaptureError: If a leaf is neither a tensor nor a plain constant.
    """
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
    if isinstance(leaf, float):
        return (float, leaf.hex())  # tells -0.0 from 0.0, and a NaN equals itself
    if isinstance(leaf, complex):
        return (complex, repr(leaf))  # for the same reason
    if isinstance(leaf, int | str | bytes | bool | enum.Enum | torch.dtype | torch.device):
        return (type(leaf), leaf)
    raise CaptureError(
        f"a leaf of type {type(leaf).__name__} is neither a tensor nor a plain constant (number, string, enum), so a captured step would "
        "freeze it; register the type with ps.tree.node, or keep it out of the batch"
    )


def surroundings() -> tuple:
    """What changes a graph from outside: ambient autocast and its dtypes, the default dtype and device, deterministic algorithms.

    Raises:
        CaptureError: If `torch.func` transforms what is around the call: a graph has its own backward inside and records no gradients, and
            its kernels take plain tensors.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise CaptureError(
            "torch.func (vmap, grad, ...) transforms a compiled function, which it cannot see into; compile the transformed function "
            "instead, as in ps.compile(torch.func.vmap(step))"
        )
    return (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_function_stack() and torch.get_default_device(),  # a default device is a mode; without modes, no question
    )


def difference(spec: Any, old: tuple, new: tuple) -> str:
    """Where two tuples of kinds of one structure differ first, for a message."""
    i = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    path = tree.paths(tree.unflatten(spec, range(len(new))))[i]
    before, after = _text(old[i]), _text(new[i])
    if before == after:
        before, after = f"{before} with strides {list(old[i][1])}", f"{after} with strides {list(new[i][1])}"
    return f"{path} was {before}, is {after}"


def _text(kind: tuple) -> str:
    if len(kind) == 2:
        return repr(kind[1])
    shape, _, dtype, device = kind
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
