"""The leaves of a manifest as an outline: groups with their sizes, down to a depth."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...checkpoint.manifest import Leaf

_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u"}


def outline(leaves: Sequence["Leaf"], depth: int) -> list[str]:
    """Lines of text, a leaf or a group each.

    Args:
        depth: How many parts of a path are opened; a group below it is one line.
    """
    rows = list(_rows([(leaf.path.split("."), leaf) for leaf in leaves], depth, ""))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {what:<{widths[1]}}  {size:>10}".rstrip() for name, what, size in rows]


def bytes_of(leaf: "Leaf") -> int:
    """Bytes of a leaf in memory; 0 for what is no tensor."""
    from ...checkpoint import tensorfile

    return tensorfile.num_bytes(tensorfile.dtype_from_name(leaf.dtype), leaf.shape) if leaf.pieces else 0


def _rows(leaves: list[tuple[list[str], "Leaf"]], depth: int, indent: str) -> Iterator[tuple[str, str, str]]:
    from ...core.tree import format_bytes

    groups: dict[str, list[tuple[list[str], Leaf]]] = {}
    for (first, *rest), leaf in leaves:
        groups.setdefault(first, []).append((rest, leaf))
    for number, (name, inner) in enumerate(groups.items(), start=1):
        branch, below = ("└─ ", "   ") if number == len(groups) else ("├─ ", "│  ")
        while len(inner) == 1 and inner[0][0]:  # a path without a fork is one line
            rest, leaf = inner[0]
            name, inner = ".".join([name, *rest]), [([], leaf)]
        size = format_bytes(sum(bytes_of(leaf) for _, leaf in inner))
        if inner[0][0]:
            yield f"{indent}{branch}{name}", f"{len(inner)} leaves, {_numbers(inner):,} numbers", size
            if depth > 1:
                yield from _rows(inner, depth - 1, indent + below)
        else:
            leaf = inner[0][1]
            yield f"{indent}{branch}{name}", _text(leaf), size if leaf.pieces else ""


def _numbers(leaves: list[tuple[list[str], "Leaf"]]) -> int:
    return sum(math.prod(leaf.shape) for _, leaf in leaves if leaf.pieces)


def _text(leaf: "Leaf") -> str:
    if not leaf.pieces:
        return f"{leaf.kind} {float.fromhex(str(leaf.value)) if leaf.kind == 'float' else leaf.value}"
    name = leaf.dtype
    kind = name.rstrip("0123456789")
    return f"{_SHORT.get(kind, kind)}{name[len(kind) :]}{leaf.shape}"
