"""Leaves that an update does not concern, because the loss does not reach them: found, and put back as they were.

Torch's optimizers leave a parameter alone whose gradient is None, where one of zeros is decayed and carried on by its momentum.

Whether a leaf is reached is a fact of the program, and may be another one on another rank, whose share of the batch takes another branch.
So ranks add up what they have reached: a leaf is idle if it is so everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from . import tree
from .grad import runs_transformed
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


def busy_flags(idle: Idle, updates: Tree, dtype: torch.dtype) -> Tensor:
    """1 for each leaf that is not idle, 0 for those that are, 1-d, to be added up over ranks."""
    leaves = tree.leaves(updates)
    flags = torch.ones(len(leaves), dtype=dtype, device=leaves[0].device if leaves else None)
    if not idle:
        return flags
    one, zero = flags[0], flags.new_zeros(())
    chosen = {path: zero if condition is None else (~condition).to(zero) for path, condition in idle.items()}
    return torch.stack([chosen.get(path, one) for path in tree.paths(updates)])


def agreed_idle(opt_state: Any, applied: Tensor | None, trainable: Tree) -> Idle | None:
    """Idle leaves, as the part of the chain that adds over ranks has found them in this update; None if there is no such part.

    Args:
        opt_state: After the update; that part keeps a flag for each leaf, `idle`.
        applied: 0-d bool, whether the update came that far: else the flags are those of an earlier one. None: it did.
    """
    flags = _find_flags(opt_state)
    if flags is None:
        return None
    if applied is not None:
        flags = flags & applied
    if _is_known(flags):  # nothing is selected then, leaf by leaf, where nothing is idle
        return {path: None for path, idle in zip(tree.paths(trainable), flags.tolist(), strict=True) if idle} if bool(flags.any()) else {}
    return dict(zip(tree.paths(trainable), flags.unbind(), strict=True))


def _find_flags(state: Any) -> Tensor | None:
    if isinstance(state, Tensor):
        return None
    own = getattr(state, "idle", None)
    if isinstance(own, Tensor):
        return own
    return next((found for _, child in children(state) if (found := _find_flags(child)) is not None), None)


def _is_known(flags: Tensor) -> bool:
    """Whether the host may look at no cost: nobody traces, and it is in the host's memory."""
    return type(flags) is Tensor and flags.device.type == "cpu" and not runs_transformed() and get_proxy_mode() is None


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
