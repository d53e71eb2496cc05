"""Schedule-free learning: gradients are taken between a fast sequence and its average, and the average is the result."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FINITE, NOT_NEGATIVE, POSITIVE_FRACTION, at_least, check_numbers, check_schedulable, check_whole
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from ..errors import TransformError
from . import leafwise
from .inner_transform import update_inner
from .leafwise import Leaves
from .moments import wide_dtype
from .parameters import wide_params


class ScheduleFreeState(NamedTuple):
    """State of `schedule_free`; scalars are 0-d float64."""

    b1: Tensor  # how near to the average the gradients are taken
    learning_rate: Hyperparam  # what the weight of the latest update came from
    max_lr: Tensor  # largest learning rate so far
    weight_sum: Tensor  # of the weights of all updates so far
    z: Tree  # the fast sequence
    base: Any  # state of the base optimizer

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The weight that the latest update has in the average."""
        return {"schedule_free/weight_sum": self.weight_sum}


def schedule_free(
    base_optimizer: GradientTransform,
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    weight_lr_power: float = 2.0,
    state_dtype: torch.dtype | None = None,
    *,
    count_from: int = 0,
) -> GradientTransform:
    """Replace the schedule and the momentum of an optimizer by averaging.

        z <- z + base update at y;    x <- (1 - c) x + c z,   c = w / sum of w,   w = (largest learning rate so far)^power
        y <- b1 x + (1 - b1) z

    The parameters held in training are `y`; validate and save at `x`, from `schedule_free_eval_params`.

    Args:
        base_optimizer: Without momentum, and with the same learning rate.
        learning_rate: Number or schedule from which the weights come; finite.
        b1: Above 0, where `y` would not tell `x` any more, and at most 1.
        weight_lr_power: 0 weighs all updates alike. Not negative.
        state_dtype: Of `z`; that of the parameters, but at least float32, by default.
        count_from: The first update has the weight of `schedule(count_from)`. 0 counts as the base optimizer does; 1 is what optax does,
            where an update of the learning rate 0 still enters the average.

    Reference:
        Defazio et al., "The road less scheduled", 2024, eq. 3 to 5 and section 4. arXiv:2405.15682. The learning rate in the weights
        is the largest so far, as in the authors' code and in optax.
    """
    check_schedulable("schedule_free", FINITE, learning_rate=learning_rate)
    check_numbers("schedule_free", POSITIVE_FRACTION, b1=b1)  # at 0 y would not tell x any more
    check_numbers("schedule_free", NOT_NEGATIVE, weight_lr_power=weight_lr_power)
    check_whole("schedule_free", at_least(0), count_from=count_from)
    shifted = (lambda count: learning_rate(count + count_from)) if callable(learning_rate) else learning_rate

    def init(params: Tree) -> ScheduleFreeState:
        z = tree.map(lambda p: p.to(state_dtype or wide_dtype(p.dtype), copy=True), params)
        return ScheduleFreeState(
            scalar_like(params, b1),
            init_hyperparam(shifted, params),
            scalar_like(params, 0.0),
            scalar_like(params, 0.0),
            z,
            base_optimizer.init(params),
        )

    def update(updates: Tree, state: ScheduleFreeState, params: Tree = None, **extra: Any) -> tuple[Tree, ScheduleFreeState]:
        y, structure = wide_params(params, "schedule_free"), tree.structure(updates)
        rate = next_hyperparam(shifted, state.learning_rate)
        max_lr = torch.maximum(state.max_lr, rate.value)
        weight = max_lr**weight_lr_power
        weight_sum = state.weight_sum + weight
        share = torch.where(weight_sum > 0, weight / torch.where(weight_sum > 0, weight_sum, 1.0), 0.0)
        steps, base = update_inner(base_optimizer, "schedule_free", updates, state.base, params, extra)
        stored = tree.leaves(state.z)
        old_z = leafwise.cast(stored, [leaf.dtype for leaf in y])
        z = leafwise.add(old_z, tree.leaves(steps))
        x = leafwise.lerp(_average(y, old_z, b1), z, share)
        out = leafwise.sub(leafwise.add(leafwise.mul(x, b1), leafwise.mul(z, 1 - b1)), y)
        z = leafwise.cast(z, [leaf.dtype for leaf in stored])
        return tree.unflatten(structure, out), ScheduleFreeState(state.b1, rate, max_lr, weight_sum, tree.unflatten(structure, z), base)

    return GradientTransform(init, update, "schedule_free", base_optimizer.needs)


def _average(y: Leaves, z: Leaves, b1: float | Tensor) -> Leaves:
    """`x` from `y = b1 x + (1 - b1) z`."""
    return leafwise.div(leafwise.sub(y, leafwise.mul(z, 1 - b1)), b1)


def schedule_free_eval_params(state: Any, params: Tree) -> Tree:
    """Parameters to validate and to save: the average `x` behind the `y` that training holds.

    Args:
        state: Of `schedule_free`, or of a chain with one such part in it.
        params: Those of training; the result has their dtypes.

    Raises:
        TransformError: If there is no such part, or more than one.
    """
    found = list(_parts(state))
    if len(found) != 1:
        raise TransformError(f"schedule_free_eval_params needs a state with one schedule_free part, this has {len(found)}")
    leaves, structure = tree.flatten(params)
    wide = [leaf.to(wide_dtype(leaf.dtype)) for leaf in leaves]
    z = leafwise.cast(tree.leaves(found[0].z), [leaf.dtype for leaf in wide])
    x = leafwise.cast(_average(wide, z, found[0].b1), [leaf.dtype for leaf in leaves])
    return tree.unflatten(structure, x)


def _parts(state: Any) -> list[ScheduleFreeState]:
    if isinstance(state, ScheduleFreeState):
        return [state]
    children = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [part for child in children for part in _parts(child)]
