"""What an optimizer will do to which parameters, as text: `describe`."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.schedule import Hyperparam
from ..core.selection import Selected
from ..core.transform import Gated, GradientTransform, children
from ..core.tree import Tree


class _Row(NamedTuple):
    depth: int
    name: str
    note: str
    state: Any


Path = tuple[str, ...]
Texts = Mapping[Path, str]


def describe(optimizer: GradientTransform, params: Tree, num_steps: int | None = None) -> str:
    """Write down the plan of an optimizer: its parts in order, the leaves each of them sees, bytes of state, hyperparameters.

    A note at the end says so if the optimizer would climb, or clips after the learning rate.

    Args:
        params: Real or meta tensors; their shapes, dtypes and paths matter, not their values.
        num_steps: Length of the run in optimizer steps. With it, values that follow a schedule are shown at five points of it.

    Returns:
        Lines of text without a newline at the end.
    """
    state = optimizer.init(tree.map(lambda p: torch.empty_like(p, device="meta"), params))
    paths = tree.paths(params)
    rows = list(_rows(optimizer.name, state, paths, 0, (), _values(optimizer, params, num_steps), _summary(paths)))
    widths = max(len("  " * row.depth + row.name) for row in rows)
    sizes = [tree.format_bytes(tree.num_bytes(row.state)) for row in rows]
    lines = [f"{'  ' * row.depth + row.name:<{widths}}  {size:>10}  {row.note}".rstrip() for row, size in zip(rows, sizes, strict=True)]
    return "\n".join([*lines, *(f"note: {text}" for text in _notes(optimizer, params))])


def _rows(name: str, state: Any, paths: Sequence[str], depth: int, at: Path, texts: Texts, leaves: str = "") -> Iterator[_Row]:
    """One row for each part, in order of execution; parts of a part below it. `leaves` is what the first row says of them."""
    if isinstance(state, Selected):
        yield _Row(depth, name, f"{sum(label is not None for label in state.labels)} of {len(paths)} leaves", state)
        for label, inner in state.inner.items():
            own = [path for path, owner in zip(state.paths, state.labels, strict=True) if owner == label]
            yield from _rows(label, inner, own, depth + 1, (*at, "inner", label), texts, _summary(own))
        return
    yield _Row(depth, name, "; ".join(filter(None, [leaves, _hyperparams_text(state, at, texts)])), state)
    for key, child in children(state):
        if isinstance(state, Mapping) or _holds_parts(child):
            yield from _rows(key, child, paths, depth + 1, (*at, key), texts)


def _holds_parts(node: Any) -> bool:
    """Whether a field of a state is the state of an inner transform: a chain or a selection."""
    if isinstance(node, Selected):
        return True
    parts = list(node.values()) if isinstance(node, Mapping) else []
    return bool(parts) and all(isinstance(part, Mapping) or hasattr(part, "_fields") or dataclasses.is_dataclass(part) for part in parts)


def _summary(paths: Sequence[str], limit: int = 6) -> str:
    """Paths with their numbers taken together: `24 leaves: blocks.*.weight (12), ...`."""
    groups = Counter(re.sub(r"(?<![^.])\d+(?![^.])", "*", path) for path in paths)
    shown = [f"{path} ({count})" if count > 1 else path for path, count in list(groups.items())[:limit]]
    rest = [f"and {len(groups) - limit} more"] if len(groups) > limit else []
    return f"{len(paths)} leaves: {', '.join([*shown, *rest])}" if paths else "no leaves"


def _hyperparams_text(state: Any, at: Path, texts: Texts) -> str:
    fields = () if isinstance(state, Mapping) else children(state)
    return ", ".join(f"{key} {texts.get((*at, key), '?')}" for key, value in fields if isinstance(value, Hyperparam))


# --- notes --------------------------------------------------------------------------------------------------------


def _notes(optimizer: GradientTransform, params: Tree) -> Iterator[str]:
    names = [part.name for part in _flat_parts(optimizer)]
    rate = names.index("scale_by_learning_rate") if "scale_by_learning_rate" in names else len(names)
    if late := [name for name in names[rate:] if name.startswith("clip_")]:
        yield f"{', '.join(late)} runs after the learning rate, so it bounds updates and not gradients; put it before the optimizer"
    if _climbs(optimizer, _small(params)):
        yield "the updates point along the gradient, so the loss would grow; end the chain with ps.scale_by_learning_rate(...)"


def _flat_parts(transform: GradientTransform) -> Iterator[GradientTransform]:
    for part in transform.parts:
        yield from _flat_parts(part)
    if not transform.parts:
        yield transform


def _climbs(optimizer: GradientTransform, small: Tree) -> bool:
    """Whether some of the first updates point along a gradient of ones, and none against it."""
    if optimizer.needs - _KNOWN_EXTRAS:
        return False
    try:
        along = list(_along_ones(optimizer, small))
    except Exception:  # a part that wants other shapes or arguments than these: then nothing is known, and nothing said
        return False
    return min(along) >= 0 and max(along) > 0


def _along_ones(optimizer: GradientTransform, small: Tree) -> Iterator[float]:
    """The first updates for a gradient of ones, each projected on it."""
    state = optimizer.init(small)
    for _ in range(_FIRST_CALLS):
        result, state = optimizer.update(tree.map(torch.ones_like, small), state, small, **_extras())
        updates = result.updates if isinstance(result, Gated) else result
        yield sum(float(leaf.real.sum()) for leaf in tree.leaves(updates))


# --- values -------------------------------------------------------------------------------------------------------

_KNOWN_EXTRAS = frozenset({"value", "denominator", "key"})
_FIRST_CALLS = 8  # enough for a rate that begins with 0, and for a short window
_MOST_CALLS = 64  # of an update that waits for its window to fill


def _values(optimizer: GradientTransform, params: Tree, num_steps: int | None) -> Texts:
    """What each hyperparameter is, found out by small updates of zeros."""
    small = _small(params)
    first = dict(_hyperparams(optimizer.init(small), ()))
    texts = {path: f"{float(hyper.value):.4g}" for path, hyper in first.items()}
    scheduled = {path for path, hyper in first.items() if isinstance(hyper.num_updates, Tensor)}
    if num_steps is None or not scheduled or optimizer.needs - _KNOWN_EXTRAS:
        return texts | {path: f"by a schedule from {texts[path]}" for path in scheduled}
    counts = [round(share * (num_steps - 1)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    at_counts = [_scheduled(optimizer, small, count, scheduled) for count in counts]
    return texts | {
        path: "by a schedule: " + ", ".join(f"{values[path]:.4g} at {count}" for count, values in zip(counts, at_counts, strict=True))
        for path in scheduled
    }


def _small(params: Tree) -> Tree:
    """Zeros like the parameters, at most 2 along each axis."""
    return tree.map(lambda p: torch.zeros([min(size, 2) for size in p.shape], dtype=p.dtype), params)


def _extras() -> dict[str, Tensor]:
    return {"value": torch.tensor(1.0), "denominator": torch.tensor(1.0), "key": torch.tensor(0)}


def _hyperparams(state: Any, path: Path) -> Iterator[tuple[Path, Hyperparam]]:
    if isinstance(state, Hyperparam):
        yield path, state
    elif not isinstance(state, Tensor | str):
        for key, child in children(state):
            yield from _hyperparams(child, (*path, key))


def _scheduled(optimizer: GradientTransform, small: Tree, count: int, scheduled: set[Path]) -> dict[Path, float]:
    """Values that the update after `count` others would use."""
    state = tree.map_with_path(
        lambda path, leaf: torch.full_like(leaf, count) if path.endswith("num_updates") else leaf, optimizer.init(small)
    )
    zeros, extra = tree.zeros_like(small), _extras()
    for _ in range(_MOST_CALLS):
        _, state = optimizer.update(zeros, state, small, **extra)
        found = dict(_hyperparams(state, ()))
        if all(torch.as_tensor(found[path].num_updates) > count for path in scheduled):
            break
    return {path: float(found[path].value) for path in scheduled}
