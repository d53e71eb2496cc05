"""Learning rates that fall with the distance from the output: `layerwise_decay`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import tree
from ..core.ranges import POSITIVE_FRACTION, check_numbers
from ..core.transform import GradientTransform
from ..core.tree import Tree
from ..errors import PatternError


@tree.node(static=("factors",))
class LayerwiseDecayState:
    """State of `layerwise_decay`, which has no tensors."""

    factors: tuple[float, ...]  # of each leaf


Depths = str | Mapping[str, int] | Callable[[str], int | None]


def layerwise_decay(decay: float, pattern_of_depth: Depths, *, first: Sequence[str] = ()) -> GradientTransform:
    """Multiply the updates of each layer by `decay` once for every layer above it.

    With L layers, the last one gets `decay`, the first `decay^L`, leaves before it `decay^(L+1)`; leaves that are in no layer, the
    head, keep their updates. Stands last in a chain, after the learning rate: `chain(adamw(1e-3), layerwise_decay(0.75,
    "blocks.{depth}.*", first=["embed*"]))`.

    Args:
        decay: In (0, 1].
        pattern_of_depth: A path pattern in which `{depth}` stands for the number of the layer, counted from 0; or a mapping of patterns to
            numbers; or a function from a path to a number, or None for the head.
        first: Patterns of leaves that come before the first layer.

    Raises:
        ValueError: If `decay` is out of range, or a pattern has no `{depth}`.
        PatternError: At `init`, if a pattern matches nothing.

    Reference:
        Clark et al., "ELECTRA", 2020, appendix A. Bao et al., "BEiT", 2022, whose numbering this is (there 0.75 or so). In torch this
        takes one parameter group for each layer.
    """
    check_numbers("layerwise_decay", POSITIVE_FRACTION, decay=decay)
    if isinstance(pattern_of_depth, str) and "{depth}" not in pattern_of_depth:
        raise ValueError(f"layerwise_decay: pattern {pattern_of_depth!r} has no {{depth}}; write for instance 'blocks.{{depth}}.*'")

    def init(params: Tree) -> LayerwiseDecayState:
        paths = tree.paths(params)
        early = [hit is not None for hit in tree.first_matches(list(first), paths, "layerwise_decay: first")]
        depths = [-1 if before else depth for before, depth in zip(early, _depths(pattern_of_depth, paths), strict=True)]
        above = max([depth for depth in depths if depth is not None], default=-1) + 1
        return LayerwiseDecayState(tuple(1.0 if depth is None else decay ** (above - depth) for depth in depths))

    def update(updates: Tree, state: LayerwiseDecayState, params: Tree = None, **extra: Any) -> tuple[Tree, LayerwiseDecayState]:
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, [u * factor for u, factor in zip(leaves, state.factors, strict=True)]), state

    return GradientTransform(init, update, "layerwise_decay")


def _depths(pattern_of_depth: Depths, paths: Sequence[str]) -> list[int | None]:
    if callable(pattern_of_depth):
        return [pattern_of_depth(path) for path in paths]
    if isinstance(pattern_of_depth, Mapping):
        numbers = list(pattern_of_depth.values())
        hits = tree.first_matches(list(pattern_of_depth), paths, "layerwise_decay: pattern")
        return [None if hit is None else numbers[hit] for hit in hits]
    text = re.escape(pattern_of_depth).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\{depth\}", r"(\d+)", 1)
    found = [re.fullmatch(text, path) for path in paths]
    if paths and not any(found):
        raise PatternError(f"layerwise_decay: pattern {pattern_of_depth!r} matches none of {len(paths)} leaves, such as {paths[0]!r}")
    return [None if match is None else int(match[1]) for match in found]
