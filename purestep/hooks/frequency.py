"""How often a hook acts: `every`."""

import dataclasses
from typing import Any

from torch import Tensor

from ..core import tree
from ..core.hook import MAY_REPLACE, Hook, Stage, StepContext
from ..core.ranges import at_least, check_whole


def every(hook: Hook, num_batches: int) -> Hook:
    """Let a hook act in every `num_batches`-th batch only.

    In the others its state stays as it is and nothing is replaced; metrics are reported always, from the state that is kept. The work
    is done in every batch all the same: a captured graph has no branches.

    Args:
        hook: Any hook; name and state keep their form.
        num_batches: Period; the hook acts first in the batch of that number, counted from 1.
    """
    check_whole("every", at_least(1), num_batches=num_batches)

    def update(state: Any, ctx: StepContext) -> tuple[Any, StepContext]:
        done = ctx.counters.batch_count + (0 if ctx.stage is Stage.AFTER_BATCH else 1)
        due = done % num_batches == 0
        new, after = hook.update(state, ctx)
        return tree.where(due, new, state), _held(due, ctx, after)

    return hook._replace(update=update)


def _held(due: Tensor, before: StepContext, after: StepContext) -> StepContext:
    changed = [name for name in sorted(MAY_REPLACE[before.stage]) if getattr(after, name) is not getattr(before, name)]
    if "loss" in changed:  # a penalty is a term of its own, and the sums must stay the same object
        changed.remove("loss")
        after = after.replace(loss=_without_new_penalties(due, before, after))
    return after.replace(**{name: tree.where(due, getattr(after, name), getattr(before, name)) for name in changed})


def _without_new_penalties(due: Tensor, before: StepContext, after: StepContext) -> Any:
    penalties = {
        key: value if key in before.loss.penalties else value * due.to(value.dtype)  # type: ignore[union-attr]
        for key, value in after.loss.penalties.items()  # type: ignore[union-attr]
    }
    total = tree.where(due, after.loss.total, before.loss.total)  # type: ignore[union-attr]
    return dataclasses.replace(after.loss, total=total, penalties=penalties)  # type: ignore[type-var]
