"""Which operation first makes a value that is not finite out of values that are: watched one by one while a step runs eagerly."""

import math
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_MACHINERY = tuple(os.path.join(_PACKAGE, part) for part in ("core", "cli", "training.py", "spec"))


class Culprit(NamedTuple):
    """An operation, and where it was called."""

    operation: str
    value: str
    """What it made: nan or inf."""
    module: str
    """The innermost module around it, by its path in the model, or else its class; empty outside of modules."""
    line: str
    """File and line of the code that asked for it."""
    backward: bool
    """Whether it belongs to a backward pass; the line is then where that was started."""


class FirstNonfinite(TorchDispatchMode):
    """Notes the first operation that makes NaN or infinity out of finite inputs, and the first that makes NaN.

    Infinity alone may be meant, as in masks; NaN hardly ever is.
    """

    def __init__(self, names: Mapping[int, str]):
        """Args: names: Paths of modules by `id`."""
        super().__init__()
        self._names = dict(names)
        self.first: Culprit | None = None
        self.first_nan: Culprit | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at its result."""
        inputs = [] if self.first_nan is not None else [_worst(leaf) for leaf in tree_leaves((args, kwargs or {}))]
        result = func(*args, **(kwargs or {}))
        if self.first_nan is None and func.overloadpacket.__name__ not in _UNWRITTEN:
            made, given = max(map(_worst, tree_leaves(result)), default=0), max(inputs, default=0)
            if made and not given and self.first is None:
                self.first = self._culprit(func, made)
            if made == _NAN and given < _NAN:
                self.first_nan = self._culprit(func, made)
        return result

    def _culprit(self, func: Any, made: int) -> Culprit:
        frames = list(_frames())
        modules = (frame.f_locals.get("self") for frame in frames)
        module = next((found for found in modules if isinstance(found, nn.Module)), None)
        name = "" if module is None else self._names.get(id(module)) or type(module).__name__
        line = next(
            (f"{f.f_code.co_filename}:{f.f_lineno}" for f in frames if not f.f_code.co_filename.startswith((_TORCH, *_MACHINERY))), ""
        )
        backward = any(frame.f_code.co_filename.endswith(os.path.join("torch", "autograd", "graph.py")) for frame in frames)
        return Culprit(str(func), "nan" if made == _NAN else "inf", name, line, backward)


_INF, _NAN = 1, 2
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
"""Operations whose result is memory as it was found."""


def _worst(leaf: Any) -> int:
    """2 if there is a NaN, 1 if there is an infinity, else 0."""
    if isinstance(leaf, float):
        return _NAN if math.isnan(leaf) else _INF if math.isinf(leaf) else 0
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()) or leaf.is_meta:
        return 0
    if bool(torch.isfinite(leaf).all()):
        return 0
    return _NAN if bool(torch.isnan(leaf).any()) else _INF


def _frames() -> Iterator[FrameType]:
    """The calls around this one, innermost first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
