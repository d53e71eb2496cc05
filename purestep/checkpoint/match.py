"""Comparing a checkpoint with the state it is loaded into: by path, exactly, and all differences at once."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..errors import StructureMismatchError
from . import layout, tensorfile
from .manifest import Leaf, Manifest

PathMap = Mapping[str, str] | Callable[[str], str]
MAX_LINES = 50


class Match(NamedTuple):
    """A leaf of the target, by position, and the checkpoint's leaf for it; None where the target keeps its own."""

    path: str
    like: Any
    leaf: Leaf | None


class Tolerance(NamedTuple):
    """What may differ, as path patterns: leaves only the target has, leaves only the checkpoint has, dtypes."""

    missing: Sequence[str] = ()
    extra: Sequence[str] = ()
    cast: Sequence[str] = ()


def rename_leaves(leaves: Sequence[Leaf], path_map: PathMap | None) -> dict[str, Leaf]:
    """Leaves of a checkpoint by the path they have in the target.

    Args:
        path_map: Function from checkpoint path to target path; or prefixes of checkpoint paths with what they become, the longest
            that fits wins. A whole path is a prefix of itself.

    Raises:
        StructureMismatchError: If a prefix fits no leaf, or two leaves end up on one path.
    """
    if path_map is None:
        return {leaf.path: leaf for leaf in leaves}
    rename = path_map if callable(path_map) else prefix_function(path_map, [leaf.path for leaf in leaves])
    renamed: dict[str, Leaf] = {}
    for leaf in leaves:
        path = rename(leaf.path)
        if path in renamed:
            raise StructureMismatchError(f"map sends both {renamed[path].path!r} and {leaf.path!r} to {path!r}")
        renamed[path] = leaf
    return renamed


def prefix_function(prefixes: Mapping[str, str], paths: list[str]) -> Callable[[str], str]:
    """The renaming that a mapping of prefixes stands for; a prefix that fits no path is an error."""
    ordered = sorted(prefixes, key=len, reverse=True)
    for prefix in ordered:
        if not any(path.startswith(prefix) for path in paths):
            near = difflib.get_close_matches(prefix, paths, n=3, cutoff=0.3) or paths[:3]
            raise StructureMismatchError(f"map: no leaf of the checkpoint begins with {prefix!r}; there are {', '.join(map(repr, near))}")

    def rename(path: str) -> str:
        found = next((prefix for prefix in ordered if path.startswith(prefix)), None)
        return path if found is None else prefixes[found] + path[len(found) :]

    return rename


def match(manifest: Manifest, like: Any, tolerance: Tolerance, path_map: PathMap | None = None, where: str = "") -> list[Match]:
    """Pair each leaf of `like` with the checkpoint's leaf of the same path, shape and dtype.

    Raises:
        StructureMismatchError: If anything differs that the tolerance does not name; every difference is listed, up to fifty.
    """
    targets = dict(tree.items(like))
    saved = rename_leaves(manifest.leaves, path_map)
    lost, foreign = [path for path in targets if path not in saved], [path for path in saved if path not in targets]
    kept = covered(tolerance.missing, lost)
    lines = [f"missing in checkpoint: {path} ({_describe(targets[path])})" for path in lost if path not in kept]
    dropped = covered(tolerance.extra, foreign)
    lines += [f"unexpected in checkpoint: {path} ({_describe_saved(saved[path])})" for path in foreign if path not in dropped]
    lines += _renaming_hints(targets, saved, [p for p in lost if p not in kept], [p for p in foreign if p not in dropped])
    shared = [path for path in targets if path in saved]
    castable = covered(tolerance.cast, shared)
    for path in shared:
        lines += _differences(path, saved[path], targets[path], path in castable)
    lines += _alias_differences(manifest, like)
    if lines:
        more = [f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
        count = sum(not line.startswith("hint:") for line in lines)
        raise StructureMismatchError(
            f"{count} differences between checkpoint {where} and target:\n  " + "\n  ".join(lines[:MAX_LINES] + more)
        )
    return [Match(path, leaf, saved.get(path)) for path, leaf in targets.items()]


def covered(patterns: Sequence[str], paths: Iterable[str]) -> set[str]:
    """Paths that a pattern covers. A pattern need not fit anything, since what it allows need not occur."""
    expressions = [re.compile(fnmatch.translate(pattern.replace("[", "[[]"))) for pattern in patterns]
    return {path for path in paths if any(expression.match(path) for expression in expressions)}


def _differences(path: str, saved: Leaf, target: Any, may_cast: bool) -> list[str]:
    kind = layout.kind_of(target)
    if saved.kind != kind:
        return [f"type: {path} checkpoint {saved.kind}, target {kind}"]
    if kind != "tensor":
        return []
    if list(target.shape) != saved.shape:
        return [f"shape: {path} checkpoint {saved.shape}, target {list(target.shape)}"]
    dtype = tensorfile.dtype_name(target.dtype)
    if dtype != saved.dtype and not (may_cast and _both_floating(target.dtype, saved.dtype)):
        return [f"dtype: {path} checkpoint {saved.dtype}, target {dtype} (cast= allows conversion between floating-point types)"]
    return []


def _both_floating(target: torch.dtype, saved: str) -> bool:
    return target.is_floating_point and tensorfile.dtype_from_name(saved).is_floating_point


def _alias_differences(manifest: Manifest, like: Any) -> list[str]:
    if not layout.is_training_state(like):
        return []
    wanted, saved = {tuple(pair) for pair in layout.aliases_of(like)}, {tuple(pair) for pair in manifest.aliases}
    lines = [f"tie: target ties {tied} to {holder}, checkpoint does not" for tied, holder in sorted(wanted - saved)]
    return lines + [f"tie: checkpoint ties {tied} to {holder}, target does not" for tied, holder in sorted(saved - wanted)]


def _renaming_hints(targets: Mapping[str, Any], saved: Mapping[str, Leaf], lost: list[str], foreign: list[str]) -> list[str]:
    hints = []
    for path in lost[:MAX_LINES]:
        fitting = [other for other in foreign[:1000] if not _differences(path, saved[other], targets[path], False)]
        near = difflib.get_close_matches(path, fitting, n=1, cutoff=0.75)
        hints += [f"hint: {path!r} and {near[0]!r} look renamed (map= can say so)"] if near else []
    return hints[:3]


def _describe(leaf: Any) -> str:
    return f"{tensorfile.dtype_name(leaf.dtype)}{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _describe_saved(leaf: Leaf) -> str:
    return f"{leaf.dtype}{leaf.shape}" if leaf.kind == "tensor" else leaf.kind
