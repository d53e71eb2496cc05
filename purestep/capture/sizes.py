"""Sizes that one captured graph serves in a range: which axes they are, how they are recorded, and what the graph relies on.

The leaves of a batch are replaced by stand-ins without data, some of whose sizes are symbols. Every decision that is taken on a symbol
while the step is recorded and compiled is noted by torch's shape environment. A symbol that turned out to be one number is an error; what
else was decided becomes a condition, which is checked before each call.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..core import tree
from ..errors import CaptureError, PatternError

Dynamic = Mapping[str, Mapping[int, Any]]
"""`torch.export.Dim` or `(name, min, max)`, by pattern of a path, then by axis."""
CONTIGUOUS = "contiguous"


@dataclasses.dataclass(frozen=True)
class Range:
    """A size by name, and the whole numbers that it may be; `most` may be infinite."""

    name: str
    least: int
    most: float

    def limits(self) -> ValueRanges:
        """The same for torch's shape environment."""
        return ValueRanges(self.least, int_oo if math.isinf(self.most) else int(self.most))

    def __str__(self) -> str:
        return f"{self.least} <= {self.name}" if math.isinf(self.most) else f"{self.least} <= {self.name} <= {self.most}"


class Axis(str):
    """The name of a size, at its place in a shape."""

    def __repr__(self) -> str:
        return str(self)


def sizes_of(dynamic: Dynamic | None, capture: str, storage: str) -> "Sizes | None":
    """What `compile(dynamic=...)` was given; None where nothing is.

    Raises:
        ValueError: If an axis or a range is not one, one name has two ranges, or another choice excludes it.
    """
    if not dynamic:
        return None
    if capture == "dynamo":
        raise ValueError("compile: dynamic is for a traced graph; use capture='trace' (torch.compile has marks of its own for sizes)")
    if storage == "flat":
        raise ValueError("compile: dynamic does not go with storage='flat', which rewrites a graph of fixed sizes; use storage='leaves'")
    return Sizes(_read(dynamic))


_FORM = '{"tokens": {1: ("length", 2, 512)}}, by pattern of a path in the batch'


def _read(dynamic: Dynamic) -> dict[str, dict[int, Range]]:
    ranges: dict[str, Range] = {}
    read: dict[str, dict[int, Range]] = {}
    if not isinstance(dynamic, Mapping):
        raise ValueError(f"compile: dynamic must be {_FORM}; got {dynamic!r}")
    for pattern, axes in dynamic.items():
        if not isinstance(axes, Mapping):
            raise ValueError(f"compile: dynamic[{pattern!r}] must be by axis, as in {_FORM}; got {axes!r}")
        read[pattern] = {}
        for axis, given in axes.items():
            where = f"compile: dynamic[{pattern!r}][{axis!r}]"
            if isinstance(axis, bool) or not isinstance(axis, int):
                raise ValueError(f"{where}: an axis is a whole number")
            size = _read_range(where, given)
            if ranges.setdefault(size.name, size) != size:
                raise ValueError(f"{where}: {size.name!r} has two ranges, {ranges[size.name]} and {size}; give each size a name of its own")
            read[pattern][axis] = size
    return read


def _read_range(where: str, given: Any) -> Range:
    is_tuple = isinstance(given, tuple) and len(given) == 3
    parts: tuple[Any, ...] = given if is_tuple else tuple(getattr(given, part, None) for part in ("__name__", "min", "max"))
    name, least, most = parts[0], parts[1], math.inf if parts[2] is int_oo else parts[2]
    are_numbers = all(type(x) is int for x in (least, most if most != math.inf else least))
    if not isinstance(name, str) or not name.isidentifier() or not are_numbers or least >= most:
        raise ValueError(f"{where} must be torch.export.Dim(name, min=..., max=...) or (name, min, max), min < max; got {given!r}")
    if least < 2:
        raise ValueError(f"{where}: sizes 0 and 1 get a graph of their own, so let the range of {name!r} begin at 2 or above, got {least}")
    return Range(name, least, most)


class Sizes:
    """Which sizes of the arguments after the first are symbols.

    Args:
        axes: By pattern of the path of a leaf in its argument, then by axis.
    """

    def __init__(self, axes: dict[str, dict[int, Range]]) -> None:
        self.axes = axes
        self.ranges = {size.name: size for sizes in axes.values() for size in sizes.values()}
        self._placed: dict[Any, dict[int, dict[int, Range]]] = {}

    def kinds(self, spec: Any, leaves: list[Any], kinds: list[tuple], num_before: int = 0) -> list[tuple]:
        """Kinds of leaves with names instead of sizes; as they are where a size, or the layout in memory, is none that one graph serves.

        Args:
            spec: Structure of the positional arguments and of the named ones.
            num_before: How many positional arguments come before those whose sizes may be symbols.

        Raises:
            PatternError: If a pattern matches no leaf.
            ValueError: If a leaf has no such axis.
        """
        placed = self._placed.get((spec, num_before))
        if placed is None:
            placed = self._placed[spec, num_before] = self._place(spec, leaves, num_before)
        named, sizes = list(kinds), dict[str, int]()
        for i, axes in placed.items():
            leaf = leaves[i]
            if not isinstance(leaf, Tensor) or not leaf.is_contiguous():
                return kinds
            shape: list[Any] = list(leaf.shape)
            for axis, size in axes.items():
                if not -len(shape) <= axis < len(shape) or not size.least <= leaf.shape[axis] <= size.most:
                    return kinds
                if sizes.setdefault(size.name, leaf.shape[axis]) != leaf.shape[axis]:
                    return kinds
                shape[axis] = Axis(size.name)
            named[i] = (tuple(shape), CONTIGUOUS, leaf.dtype, leaf.device)
        return named

    def _place(self, spec: Any, leaves: list[Any], num_before: int) -> dict[int, dict[int, Range]]:
        args, kwargs = tree.unflatten(spec, leaves)
        begin = len(tree.leaves(args[:num_before]))
        paths = [path for argument in (*args[num_before:], *(kwargs[name] for name in sorted(kwargs))) for path in tree.paths(argument)]
        if not paths:
            raise PatternError("compile: dynamic names sizes of the arguments after the first, which have no leaves")
        try:
            found = tree.first_matches(list(self.axes), paths, "dynamic pattern")
        except PatternError as error:
            raise PatternError(f"{error} (the leaves of the arguments after the first; the sizes of a state are fixed)") from error
        sizes = list(self.axes.values())
        placed = {begin + i: sizes[number] for i, number in enumerate(found) if number is not None}
        for i, axes in placed.items():
            path, num_axes = paths[i - begin] or "the batch", leaves[i].ndim if isinstance(leaves[i], Tensor) else 0
            if not all(-num_axes <= axis < num_axes for axis in axes):
                raise ValueError(f"compile: dynamic names axes {list(axes)} of {path}, which has {num_axes} axes")
        return placed

    def symbols(self, kinds: Sequence[tuple], leaves: list[Any]) -> "Symbols | None":
        """Symbols for the names in the kinds of leaves; None where there are none."""
        hints = {
            str(name): leaf.shape[axis]
            for kind, leaf in zip(kinds, leaves, strict=True)
            if len(kind) == 4
            for axis, name in enumerate(kind[0])
            if isinstance(name, Axis)
        }
        return Symbols(kinds, [self.ranges[name] for name in hints], hints) if hints else None


class Symbols:
    """The symbols of one capture: the mode in which it is recorded, and what was decided about them.

    Args:
        kinds: Of the leaves of all arguments.
        hints: An example of each size.
    """

    def __init__(self, kinds: Sequence[tuple], ranges: list[Range], hints: dict[str, int]) -> None:
        self.kinds, self.ranges, self.env = kinds, ranges, ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        tensors = [(i, kind[0]) for i, kind in enumerate(kinds) if len(kind) == 4]
        self.places = {name: (i, axis) for i, shape in tensors for axis, name in enumerate(shape) if name in hints}
        self.symbols: dict[str, sympy.Symbol] = {}
        self._sizes: dict[str, Any] = {}
        for size in ranges:
            source = ConstantSource(size.name)
            constraint = StrictMinMaxConstraint(warn_only=False, vr=size.limits())
            symbol = self.env.create_symbol(hints[size.name], source, DimDynamic.DYNAMIC, constraint)
            self.symbols[size.name] = symbol
            self._sizes[size.name] = self.env.create_symintnode(symbol, hint=hints[size.name], source=source)

    def stand_in(self, leaf: Tensor, number: int | None = None) -> Tensor:
        """A tensor without data for a leaf of this number, some of whose sizes may be symbols, or for one of fixed shape."""
        if number is None or self.kinds[number][1] is not CONTIGUOUS:
            return self.mode.from_tensor(leaf.detach(), static_shapes=True)
        with self.mode:
            shape = [self._sizes[size] if isinstance(size, Axis) else size for size in self.kinds[number][0]]
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device)

    def condition(self, spec: Any) -> "Condition":
        """What the recorded and compiled graph relies on.

        Args:
            spec: Structure of all arguments, for messages.

        Raises:
            CaptureError: If a size was taken as a number.
        """
        for name, symbol in self.symbols.items():
            value = self.env.simplify(symbol)
            if value.is_number:
                raise CaptureError(self._specialised(name, symbol, int(value), spec))
        limits = {self.symbols[size.name]: size.limits() for size in self.ranges}
        relations = [guard.expr for guard in self.env.guards]
        relations += [sympy.Eq(symbol, self.env.replacements[symbol]) for symbol in limits if symbol in self.env.replacements]
        needed = [relation for relation in dict.fromkeys(relations) if not _is_always(relation, limits)]
        return Condition(tuple(needed), {symbol: self.places[name] for name, symbol in self.symbols.items()}, self._texts(needed))

    def _texts(self, relations: list[Any]) -> tuple[str, ...]:
        names = {symbol: sympy.Symbol(name, integer=True) for name, symbol in self.symbols.items()}
        return (*map(str, self.ranges), *(str(relation.xreplace(names)) for relation in relations))

    def _specialised(self, name: str, symbol: sympy.Symbol, value: int, spec: Any) -> str:
        i, axis = self.places[name]
        paths = tree.paths(tree.unflatten(spec, range(spec.num_leaves)))
        where = self.env.replacements_slocs.get(symbol)
        line = f" at {where}" if where is not None else ""
        alike = [
            f"axis {other} of {_place(path)}"
            for path, (shape, *_) in zip(paths, self.kinds, strict=True)
            if _argument(path) == _argument(paths[i])
            for other, size in enumerate(shape if isinstance(shape, tuple | list) else ())
            if size == value and not isinstance(size, Axis)
        ]
        hint = f" If {' or '.join(alike[:3])} is the same size, name it in dynamic too." if alike else ""
        return (
            f"dynamic: size {name!r} (axis {axis} of {_place(paths[i])}) was taken as the number {value}{line}, so the graph would serve "
            f"no other; write it without int(), len() of a tensor, a loop over range({name}) or a list of {name} parts, or leave it out of "
            f"dynamic and pad batches to few sizes.{hint}"
        )


def _argument(path: str) -> list[str]:
    """Whether an argument has a number or a name, and which."""
    return path.split(".", 2)[:2]


def _place(path: str) -> str:
    """A leaf of the arguments, for a message."""
    kind, which, *rest = path.split(".", 2)
    argument = f"argument {int(which) + 1 if kind == '0' else which}"
    return f"{rest[0]} in {argument}" if rest else argument


def _is_always(relation: Any, limits: dict[Any, ValueRanges]) -> bool:
    known: Any = bound_sympy(relation, limits)
    return known.is_singleton() and bool(known.lower)


@dataclasses.dataclass(frozen=True)
class Condition:
    """Relations between sizes that a graph relies on, beside their ranges."""

    relations: tuple[Any, ...]
    places: dict[sympy.Symbol, tuple[int, int]]
    """Where each size is read: leaf and axis."""
    texts: tuple[str, ...]
    """Ranges and relations, for people."""

    def holds(self, leaves: list[Any]) -> bool:
        """Whether the sizes of these leaves fulfil all relations."""
        sizes = {symbol: leaves[i].shape[axis] for symbol, (i, axis) in self.places.items()}
        return all(sympy_interp(PythonReferenceAnalysis, sizes, relation) for relation in self.relations)


@contextlib.contextmanager
def recorded(symbols: Symbols | None) -> Iterator[None]:
    """Where a step is recorded: with symbols, every tensor is one without data."""
    if symbols is None:
        yield
        return
    with symbols.mode, enable_python_dispatcher():  # operations made of others must be recorded by their parts, which know symbols
        yield


def relied_on(symbols: Symbols | None, spec: Any) -> tuple[tuple[str, ...], Condition | None]:
    """What a graph relies on about sizes, for people, and what of that must be checked before each call."""
    if symbols is None:
        return (), None
    condition = symbols.condition(spec)
    return condition.texts, condition if condition.relations else None


def refuse_sizes(returned: Any) -> None:
    """A result that is computed from a size on the host would be that of the first call for ever.

    Raises:
        CaptureError: Naming the result.
    """
    for path, leaf in tree.items(returned):
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise CaptureError(f"dynamic: the result {path} is a number computed from a size; return torch.full((), number)")
