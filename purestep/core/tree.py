"""Trees of tensors: one namespace over optree, and the paths by which everything is named.

States, parameters and batches are trees: dicts, tuples, lists, NamedTuples and the frozen dataclasses that `node` registers. The
path of a leaf is its keys joined with dots (`params.layer.weight`); checkpoints, patterns and error messages all use it.
"""

import builtins
import dataclasses
import difflib
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, dataclass_transform

import optree
import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from ..errors import PatternError, TreeError

Tree = Any
NAMESPACE = "purestep"


def map(fn: Callable, tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to corresponding leaves; the other trees must have the structure of the first."""
    return optree.tree_map(fn, tree, *rest, namespace=NAMESPACE)


def leaves(tree: Tree) -> list[Any]:
    """List the leaves, dict keys in sorted order."""
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def nodes(tree: Tree) -> list[Any]:
    """List the containers and the leaves, each before what is in it."""
    found: list[Any] = []
    # `append` returns None: go on into it
    optree.tree_leaves(tree, is_leaf=found.append, none_is_leaf=False, namespace=NAMESPACE)  # type: ignore[arg-type]
    return found


def flatten(tree: Tree) -> tuple[list[Any], Any]:
    """Split a tree into leaves and a structure that `unflatten` understands."""
    return optree.tree_flatten(tree, namespace=NAMESPACE)


def unflatten(structure: Any, leaves: Iterable[Any]) -> Tree:
    """Put leaves back into a structure."""
    return optree.tree_unflatten(structure, leaves)


def structure(tree: Tree) -> Any:
    """The structure alone; comparable and hashable."""
    return optree.tree_structure(tree, namespace=NAMESPACE)


def _entry_name(entry: optree.PyTreeEntry) -> str:
    return entry.field if isinstance(entry, optree.NamedTupleEntry) else str(entry.entry)


def paths(tree: Tree) -> list[str]:
    """Dotted path of each leaf, in the order of `leaves`.

    Raises:
        TreeError: If two leaves have the same dotted path (`{"a.b": x, "a": {"b": y}}`).

    Example:
        >>> paths({"layer": {"weight": 1, "bias": 2}, "scales": (3,)})
        ['layer.bias', 'layer.weight', 'scales.0']
    """
    names = [".".join(builtins.map(_entry_name, accessor)) for accessor in optree.tree_accessors(tree, namespace=NAMESPACE)]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise TreeError(f"two leaves share the path {twice[0]!r}; rename one of the keys (dots join keys into paths)")
    return names


def items(tree: Tree) -> list[tuple[str, Any]]:
    """Pairs of dotted path and leaf."""
    return list(zip(paths(tree), leaves(tree), strict=True))


def map_with_path(fn: Callable, tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn(path, leaf, ...)` to corresponding leaves."""
    flat, spec = flatten(tree)
    others = [spec.flatten_up_to(other) for other in rest]
    return unflatten(spec, [fn(*args) for args in zip(paths(tree), flat, *others, strict=True)])


# --- tensors ------------------------------------------------------------------------------------------------------


def clone(tree: Tree) -> Tree:
    """Copy every leaf into memory of its own, keeping its strides."""
    return map(torch.clone, tree)


def zeros_like(tree: Tree, dtype: torch.dtype | None = None) -> Tree:
    """Zeros of the same shapes; of `dtype` where given."""
    return map(lambda leaf: torch.zeros_like(leaf, dtype=dtype), tree)


def cast(tree: Tree, dtype: torch.dtype) -> Tree:
    """Convert floating-point leaves to `dtype`; others stay."""
    return map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def to_device(tree: Tree, device: torch.device | str | None, non_blocking: bool = False) -> Tree:
    """Move every tensor leaf; `None` leaves all where they are."""
    if device is None:
        return tree
    return map(lambda leaf: leaf.to(device, non_blocking=non_blocking) if isinstance(leaf, Tensor) else leaf, tree)


def where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    """`new` where the 0-d `condition` holds, else `old`, leaf by leaf; leaves that are the same object stay that object."""
    return map(lambda n, o: o if n is o else torch.where(condition, n, o), new, old)


def global_norm(tree: Tree) -> Tensor:
    """Euclidean norm over all leaves, 0-d.

    Squares are summed in float64, so that neither a half-precision leaf nor a gradient of 1e20 overflows. The result is float64;
    an empty tree has norm 0.
    """
    norms = [torch.linalg.vector_norm(leaf, dtype=torch.complex128 if leaf.is_complex() else torch.float64) for leaf in leaves(tree)]
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    if len(norms) == 1:
        return norms[0]
    # one by one rather than stacked: inductor fuses a sum of scalars, and would give each of them a place in a stack
    squares = functools.reduce(lambda total, norm: torch.addcmul(total, norm, norm), norms[1:], norms[0].square())
    return squares.sqrt()


def num_bytes(tree: Tree) -> int:
    """Bytes of all tensor leaves together."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree) if isinstance(leaf, Tensor))


# --- selection by path --------------------------------------------------------------------------------------------


def _regex(pattern: str) -> re.Pattern:
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def first_matches(patterns: Sequence[str], names: Sequence[str], what: str = "pattern") -> list[int | None]:
    """For each name the index of the first pattern that matches it, or None.

    `*` stands for any run of characters, dots included; `?` for one character.

    Args:
        what: How an error calls the patterns.

    Raises:
        PatternError: If a pattern matches no name at all; near misses are listed.
    """
    expressions = [_regex(pattern) for pattern in patterns]
    for pattern, expression in zip(patterns, expressions, strict=True):
        if names and not any(builtins.map(expression.match, names)):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or list(names[:3])
            raise PatternError(
                f"{what} {pattern!r} matches none of {len(names)} leaves; did you mean {', '.join(builtins.map(repr, near))}?"
            )
    return [next((i for i, expression in enumerate(expressions) if expression.match(name)), None) for name in names]


# --- frozen dataclasses as nodes ----------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type | None = None, *, static: tuple[str, ...] = ()) -> Any:
    """Make a class a frozen dataclass and a tree node, for optree and for torch's own tree functions.

    Args:
        static: Fields that belong to the structure, not to the leaves; they must be hashable.
    """
    return _register(cls, static) if cls is not None else lambda real: _register(real, static)


def _register(cls: Any, static: tuple[str, ...]) -> Any:
    # eq=False: two states are compared leaf by leaf, never by an operator that returns a tensor
    cls = dataclasses.dataclass(frozen=True, eq=False, repr="__repr__" not in cls.__dict__)(cls)
    names = tuple(field.name for field in dataclasses.fields(cls) if field.name not in static)

    def children_and_static(x):
        return tuple([getattr(x, name) for name in names]), tuple([getattr(x, name) for name in static])

    def build(fixed, children):
        return cls(**dict(zip(names, children, strict=True)), **dict(zip(static, fixed, strict=True)))

    optree.register_pytree_node(
        cls, lambda x: (*children_and_static(x), names), build, path_entry_type=optree.GetAttrEntry, namespace=NAMESPACE
    )
    torch_pytree.register_pytree_node(
        cls,
        children_and_static,
        lambda children, fixed: build(fixed, children),
        flatten_with_keys_fn=lambda x: ([(torch_pytree.GetAttrKey(name), getattr(x, name)) for name in names], children_and_static(x)[1]),
    )
    return cls


# --- text ---------------------------------------------------------------------------------------------------------


def format_bytes(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> format_bytes(1536)
        '1.5 KiB'
    """
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f} {units[0]}" if units[0] != "B" else f"{count} B"


def describe(tree: Tree, title: str) -> str:
    """A table of paths, dtypes, shapes and bytes, as text."""
    rows = [(path, leaf_text(leaf), format_bytes(num_bytes(leaf))) for path, leaf in items(tree)]
    widths = [max([len(row[column]) for row in rows] or [0]) for column in (0, 1)]
    lines = [f"  {path:<{widths[0]}}  {text:<{widths[1]}}  {size:>10}" for path, text, size in rows]
    return "\n".join([f"{title}  {len(rows)} leaves, {format_bytes(num_bytes(tree))}", *lines])


def leaf_text(leaf: Any) -> str:
    """Dtype, shape and, unless it is the CPU, device of a leaf; what is no tensor as it is."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    text = f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return text if leaf.device.type == "cpu" else f"{text} {leaf.device}"
