"""Leaves that an update does not concern, because the loss does not reach them: found, and put back as they were.

Torch's optimizers leave a parameter alone whose gradient is None, where one of zeros is decayed and carried on by its momentum.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import tree
from .transform import children, rebuild
from .tree import Tree

Idle = Mapping[str, Tensor | None]
"""Paths of leaves that an update does not concern, each with a condition, 0-d bool; None: in any case."""


def idle_leaves(windows: Sequence[Tree], paths: Sequence[str]) -> Idle:
    """Those of these leaves whose sums over the open windows are zero to the last bit; all of them where there is no window."""
    if not windows:
        return dict.fromkeys(paths)
    sums = [dict(tree.items(window)) for window in windows]
    empty = {path: [(total[path] == 0).all() for total in sums if path in total] for path in paths}
    return {path: torch.stack(flags).all() for path, flags in empty.items() if flags}


def put_back(idle: Idle, trainable: Tree, old: Any, new: Any) -> Any:
    """Idle leaves, and their optimizer state, as they were: no decay and no momentum moves them.

    What belongs to a leaf is found by structure: in a tree of the form of the parameters, or in a dict by their paths.
    """
    form, paths = tree.structure(trainable), tree.paths(trainable)

    def choose(path: str, was: Any, now: Any) -> Any:
        if path not in idle:
            return now
        condition = idle[path]
        return was if condition is None else tree.where(condition, was, now)

    def visit(before: Any, after: Any) -> Any:
        if isinstance(after, Tensor):
            return after
        if (ours := _by_leaf(form, after)) is not None:
            return tree.unflatten(form, [choose(*part) for part in zip(paths, _by_leaf(form, before) or (), ours, strict=True)])
        if isinstance(after, Mapping) and after and set(after) <= set(paths):
            return {path: choose(path, before[path], now) for path, now in after.items()}
        return rebuild(after, {key: visit(was, now) for (key, was), (_, now) in zip(children(before), children(after), strict=True)})

    return visit(old, new)


def _by_leaf(form: Any, state: Any) -> list[Any] | None:
    """What a state holds for each parameter, if it has the form of the parameters."""
    try:
        return form.flatten_up_to(state)
    except (ValueError, TypeError):
        return None
