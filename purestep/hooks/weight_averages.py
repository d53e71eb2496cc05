"""Averages of the weights along training: exponential (`ema`), equal (`swa`), polynomial (`polyak`); and `average` to read them.

An average is a part of the hook state, never put in place of the weights. All three differ only in how much of the newest weights they
take, so they share one mechanism.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook, Stage, StepContext
from ..core.ranges import DECAY, FRACTION, NOT_NEGATIVE, at_least, check_numbers, check_schedulable, check_whole
from ..core.schedule import Hyperparam, ScalarOrSchedule, Schedule, as_count, init_hyperparam, next_hyperparam, scalar_like
from ..core.state import TrainState
from ..core.tree import Tree
from ..errors import HookError


class AverageState(NamedTuple):
    """State of every average of weights; ready to be used as it is."""

    params: Tree  # float32 or wider
    buffers: Tree  # floats averaged like parameters; integers are those of the latest averaged step
    memory: Any  # what the rate depends on


class EmaMemory(NamedTuple):
    """What the rate of `ema` depends on."""

    weight: Tensor  # 0-d float64: sum of the weights of all that was averaged; 1 throughout without debias
    decay: Hyperparam


def ema(decay: ScalarOrSchedule = 0.999, name: str = "ema", *, update_every: int = 1, start_step: int = 0, debias: bool = False) -> Hook:
    """Average the weights exponentially, `average <- decay average + (1 - decay) params`, after every update that was applied.

    The average begins with the weights at `init`. It is kept in float32 or wider: in bfloat16 it would never move. A vetoed update, be
    it a bad batch or an open accumulation window, leaves it as it is.

    Args:
        decay: In [0, 1); a number (a leaf of the state, `ps.set_hyperparams(hook_state, decay=...)` changes it), or a schedule of the
            averaged steps so far, such as `warmup_decay(0.9999)`.
        name: Under which the state is kept.
        update_every: Average only after every so many applied updates.
        start_step: Up to this many applied updates the average is a copy of the weights.
        debias: Divide by the sum of the weights, so that the average forgets where it began: Adam's correction.

    Reference:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015, section 3 (the correction). arXiv:1412.6980
    """
    check_schedulable("ema", DECAY, decay=decay)

    def begin(params: Tree) -> EmaMemory:
        return EmaMemory(scalar_like(params, 0.0 if debias else 1.0), init_hyperparam(decay, params))

    def advance(memory: EmaMemory) -> tuple[Tensor, EmaMemory]:
        used = next_hyperparam(decay, memory.decay)
        weight = 1.0 - used.value * (1.0 - memory.weight)  # exactly 1 where it was 1
        return (1.0 - used.value) / weight, EmaMemory(weight, used)

    return _weight_average(name, begin, advance, update_every, start_step)


def warmup_decay(decay: float) -> Schedule:
    """A decay for `ema` that grows with the averaged steps: `min(decay, (1 + count) / (10 + count))`.

    Args:
        decay: Its bound, in [0, 1].

    Reference:
        Documentation of `tf.train.ExponentialMovingAverage`, argument `num_updates`.
    """
    check_numbers("warmup_decay", FRACTION, decay=decay)

    def schedule(count: Tensor | int) -> Tensor:
        steps = as_count(count)
        return torch.clamp((1.0 + steps) / (10.0 + steps), max=decay)

    return schedule


def swa(name: str = "swa", *, update_every: int = 1, start_step: int = 0) -> Hook:
    """Average the weights equally over all applied updates from `start_step` on; stochastic weight averaging.

    Args:
        name: Under which the state is kept.
        update_every: Average only after every so many applied updates: an epoch's, say.
        start_step: Up to this many applied updates the average is a copy of the weights, and they do not count.

    Reference:
        Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018, algorithm 1. BatchNorm statistics are
        averaged like weights here, in place of the paper's extra pass over the data. arXiv:1803.05407
    """
    return polyak(0.0, name, update_every=update_every, start_step=start_step)


def polyak(eta: float = 0.0, name: str = "polyak", *, update_every: int = 1, start_step: int = 0) -> Hook:
    """Average the weights with polynomially growing preference for later ones: the `t`-th enters with the rate `(eta + 1) / (t + eta)`.

    Args:
        eta: 0 weighs all equally (Polyak and Ruppert); 3 to 8 forget the beginning. Not negative.
        name: Under which the state is kept.
        update_every: Average only after every so many applied updates.
        start_step: Up to this many applied updates the average is a copy of the weights, and they do not count.

    Reference:
        Shamir and Zhang, "Stochastic gradient descent for non-smooth optimization", 2013, section 4 (polynomial-decay averaging).
        arXiv:1212.1824
    """
    check_numbers("polyak", NOT_NEGATIVE, eta=eta)

    def begin(params: Tree) -> Tensor:
        return scalar_like(params, 0, torch.int64)

    def advance(count: Tensor) -> tuple[Tensor, Tensor]:
        return (eta + 1.0) / ((count + 1).to(torch.float64) + eta), count + 1

    return _weight_average(name, begin, advance, update_every, start_step)


def average(state: TrainState, name: str = "ema") -> tuple[Tree, Tree]:
    """The averaged parameters and buffers, in the dtypes of the model: `tr.evaluate(state, batch, *average(state, "ema"))`.

    Args:
        state: Of a training with such a hook.
        name: Of the hook.

    Raises:
        HookError: If the state holds no average of that name; those that it holds are listed.
    """
    kept = state.hook_state.get(name)
    if not isinstance(kept, AverageState):
        there = sorted(key for key, value in state.hook_state.items() if isinstance(value, AverageState))
        raise HookError(f"average: this state holds no average of weights called {name!r}, only {there}; add ps.hooks.ema(name={name!r})")
    return tree.map(lambda a, now: a.to(now.dtype), (kept.params, kept.buffers), (state.params, state.buffers))


def _weight_average(
    name: str,
    begin: Callable[[Tree], Any],
    advance: Callable[[Any], tuple[Tensor, Any]],
    update_every: int,
    start_step: int,
) -> Hook:
    """The one mechanism: `advance(memory) -> (rate of the newest weights, memory)`."""
    check_whole(name, at_least(1), update_every=update_every)
    check_whole(name, at_least(0), start_step=start_step)

    def init(state: TrainState) -> AverageState:
        return AverageState(_widened(state.params), _widened(state.buffers), begin(state.params))

    def update(state: AverageState, ctx: StepContext) -> tuple[AverageState, StepContext]:
        rate, memory = advance(state.memory)
        step = ctx.counters.step_count + 1  # if this update is applied
        due = None if update_every == 1 else step % update_every == 0
        if start_step:
            early = step <= start_step
            rate, memory = torch.where(early, 1.0, rate), tree.where(early, state.memory, memory)
            due = None if due is None else due | early
        new = AverageState(_blend(state.params, ctx.params, rate), _blend(state.buffers, ctx.buffers, rate), memory)
        for condition in (due, ctx.applied):
            new = new if condition is None else tree.where(condition, new, state)
        return new, ctx

    return Hook(name, frozenset({Stage.AFTER_OPTIMIZER_STEP}), init, update)


def _is_averaged(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _widened(values: Tree) -> Tree:
    return tree.map(lambda x: x.to(torch.promote_types(x.dtype, torch.float32), copy=True) if _is_averaged(x) else x.clone(), values)


def _blend(old: Tree, new: Tree, rate: Tensor) -> Tree:
    # lerp is exact at both ends: a leaf that stays is bitwise constant, a rate of 1 copies
    return tree.map(lambda a, x: torch.lerp(a, x.to(a.dtype), rate.to(a.dtype)) if _is_averaged(a) else x.clone(), old, new)
