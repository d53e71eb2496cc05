"""What training carries from batch to batch: one immutable tree."""

from typing import Any

import torch
from torch import Tensor

from ..errors import ConsumedStateError, StateError
from . import tree
from .notebook import as_html
from .tree import Tree


@tree.node
class Counters:
    """Progress, as 0-d int64 tensors.

    A batch that a gate vetoes moves only `batch_count` and `epoch_step_count`.
    """

    batch_count: Tensor
    """Batches completed on this worker."""
    step_count: Tensor
    """Updates really applied on this worker."""
    global_step_count: Tensor
    """Advances by the world size with each applied update."""
    epoch_count: Tensor
    """Passes over the data that were exhausted."""
    epoch_step_count: Tensor
    """Batches in the current epoch."""


def zero_counters(device: torch.device | str | None = None) -> Counters:
    """Counters of a run that has not begun."""
    return Counters(*(torch.zeros((), dtype=torch.int64, device=device) for _ in range(5)))


def count_batch(counters: Counters, applied: Tensor | None, world_size: int = 1) -> Counters:
    """The counters after one batch; `applied` None means that nothing can veto."""
    step = 1 if applied is None else applied.to(torch.int64)
    return Counters(
        batch_count=counters.batch_count + 1,
        step_count=counters.step_count + step,
        global_step_count=counters.global_step_count + step * world_size,
        epoch_count=counters.epoch_count,
        epoch_step_count=counters.epoch_step_count + 1,
    )


@tree.node(static=("aliases",))
class TrainState:
    """Everything that changes during training; writing this tree to disk is the checkpoint.

    Leaves are tensors. The path of a leaf (`params.layer.weight`) is its name in checkpoints, patterns and messages.
    """

    params: Tree
    """All parameters by dotted name: `{"layer.weight": T}`, or `{model: {...}}` for several models; or any tree with `make_step`."""
    buffers: Tree
    """Module buffers, the same shape of tree."""
    opt_state: Any
    """State of the chain, named per transform; only trainable leaves have optimizer state."""
    hook_state: dict[str, Any]
    """`{hook name: state}`."""
    counters: Counters
    seed: Tensor
    """0-d int64; all randomness is a function of (seed, batch_count, rank, purpose)."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Tied parameters: (name, name of the leaf that holds it)."""

    def __repr__(self) -> str:
        head, *rows = tree.describe(self, "TrainState").split("\n")
        totals = {name: tree.num_bytes(getattr(self, name)) for name in ("params", "buffers", "opt_state", "hook_state")}
        return "\n".join([f"{head}: {', '.join(f'{name} {tree.format_bytes(count)}' for name, count in totals.items() if count)}", *rows])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self, "TrainState")


def check_state(state: Any, where: str) -> None:
    """Refuse what is no state, and a state that a donating step has used up.

    Raises:
        StateError: Naming what was given.
        ConsumedStateError: As `check_not_consumed`.
    """
    if not isinstance(state, TrainState):
        raise StateError(f"{where}: expected a TrainState, as init() makes it, got {type(state).__name__}")
    check_not_consumed(state, where)


def check_same_form(before: TrainState, after: TrainState) -> None:
    """Refuse a new state whose leaves have other names, shapes, dtypes or devices: it could be neither captured nor saved as the same run.

    Raises:
        StateError: Naming the leaf.
    """
    if torch.compiler.is_dynamo_compiling():
        return  # its stand-in for trees tells dicts apart by the order of their keys
    (old, form), (new, same) = tree.flatten(before), tree.flatten(after)
    if form != same:
        lost, gained = set(tree.paths(before)) - set(tree.paths(after)), set(tree.paths(after)) - set(tree.paths(before))
        change = "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in (("lost", lost), ("gained", gained)) if names)
        raise StateError(f"step: the new state has another structure than the old one: {change or f'{form} became {same}'}")
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        if a is not b and (_kind(a) != _kind(b)):
            raise StateError(
                f"step: {tree.paths(before)[i]} was {_kind(a)}, became {_kind(b)}; what carries over from step to step keeps its dtype, "
                "shape and device, so convert it where it is computed"
            )


def _kind(leaf: Any) -> str | tuple:
    return (leaf.dtype, tuple(leaf.shape), leaf.device) if isinstance(leaf, Tensor) else type(leaf).__name__


def mark_consumed(state: Any) -> None:
    """Note on a state that its memory was given to its successor; a plain dict or tuple cannot be marked."""
    if hasattr(state, "__dict__"):
        object.__setattr__(state, "_consumed", True)


def check_not_consumed(state: Any, where: str) -> None:
    """Refuse a state whose memory a donating step has reused: its tensors now hold later values.

    Raises:
        ConsumedStateError: Naming who was asked to use it.
    """
    if getattr(state, "_consumed", False):
        raise ConsumedStateError(
            f"{where}: this state was given to a step compiled with donate=True, which reused its memory; "
            "use the state that the step returned, or keep a copy with ps.tree.clone before"
        )
