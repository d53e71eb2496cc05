"""A tree as HTML, for notebooks: groups with their sizes, which open on a click, and leaves. `tree.describe` gives it as text."""

import html
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from . import tree
from .tree import Tree

_STYLE = "font-family:monospace;line-height:1.5"
_INNER = "margin-left:1.5em"

Row = tuple[list[str], Any]
"""What is left of the path of a leaf, and the leaf."""


def as_html(whole: Tree, title: str) -> str:
    """HTML that runs nothing and refers to nothing; the groups of the first level are seen, and a click opens one.

    Example:
        >>> as_html({"w": torch.zeros(2, 3)}, "params").count("<details")
        1
    """
    rows = [(path.split("."), leaf) for path, leaf in tree.items(whole)]
    return f'<div style="{_STYLE}">{"".join(_group(title, rows, opened=True))}</div>'


def _group(name: str, rows: Sequence[Row], *, opened: bool = False) -> Iterator[str]:
    tensors = [leaf for _, leaf in rows if isinstance(leaf, Tensor)]
    numbers = sum(leaf.numel() for leaf in tensors)
    facts = f"{len(rows)} leaves, {numbers:,} numbers, {tree.format_bytes(tree.num_bytes(tensors))}"
    opening = ' open="open"' if opened else ""
    yield f'<details{opening}><summary><b>{html.escape(name)}</b>  {facts}</summary><div style="{_INNER}">'
    groups: dict[str, list[Row]] = {}
    for (first, *rest), leaf in rows:
        groups.setdefault(first, []).append((rest, leaf))
    for inner_name, inner in groups.items():
        if len(inner) == 1:  # a path without a fork is one line
            rest, leaf = inner[0]
            yield f"<div>{html.escape('.'.join([inner_name, *rest]))}  {html.escape(_leaf(leaf))}</div>"
        else:
            yield from _group(inner_name, inner)
    yield "</div></details>"


def _leaf(leaf: Any) -> str:
    return f"{tree.leaf_text(leaf)}  {tree.format_bytes(tree.num_bytes(leaf))}" if isinstance(leaf, Tensor) else repr(leaf)
