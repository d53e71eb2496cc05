"""The laws of hooks: `check_hook`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook
from ..core.loss import Sums
from ..core.state import TrainState
from ..core.step import init_state, make_step
from ..core.transform import EmptyState, Gated, GradientTransform
from ..core.tree import Tree
from .comparing import assert_leaves_are_apart, assert_same_layout, assert_shares_no_memory, assert_trees_equal
from .forms import check_forms, check_repeats


def check_hook(
    hook: Hook,
    *,
    loss_fn: Callable[[Tree, Any], Any] | None = None,
    params: Tree = None,
    batch: Tree = None,
    num_steps: int = 3,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> None:
    """Check that a hook keeps the laws, inside the step of a small training by gradient descent.

    The step with the hook is pure and repeatable; hook state and metrics keep their structure, dtypes and shapes, and share no memory
    with anything else; a rejected batch leaves the hook's state bitwise; tracing, `torch.compile` and `vmap` give the eager numbers.

    Args:
        hook: To check.
        loss_fn: `loss_fn(params, batch)`, as for `ps.make_step`; by default a linear regression that gives values by sample.
        params: By default those of the regression: `{"layer": {"weight": (2, 3), "bias": (2,)}}`, float64.
        batch: By default that of the regression: `{"x": (5, 3), "y": (5, 2)}`, float64.
        num_steps: Steps to take before the later laws are checked.
        rtol: Between forms, relative.
        atol: Between forms, absolute.

    Raises:
        AssertionError: Naming the law.
    """
    loss_fn = loss_fn or squared_error_of_line
    params = line() if params is None else params
    batch = points() if batch is None else batch
    optimizer = _descend_and_reject(num_steps)
    step = make_step(loss_fn, optimizer, (hook,))
    state = check_repeats(lambda params: init_state(params, optimizer, (hook,)), (params,), f"hook {hook.name}: init")
    assert_shares_no_memory(state, (params, batch), f"hook {hook.name}: the first state")
    assert_leaves_are_apart(state, f"hook {hook.name}: the first state")
    state, metrics = step(state, batch)
    for _ in range(1, num_steps):
        earlier, earlier_metrics = state, metrics
        state, metrics = step(state, batch)
        assert_same_layout(state, earlier, f"hook {hook.name}: the state after a step")
        assert_same_layout(metrics, earlier_metrics, f"hook {hook.name}: the metrics of a step")
    _check_rejection(hook, state, step(state, batch)[0])
    going_on = _with_batch_count(state, 0)
    result, metrics = check_repeats(step, (going_on, batch), f"hook {hook.name}: the step")
    assert_shares_no_memory(result, (going_on, batch), f"hook {hook.name}: the step's state")
    assert_leaves_are_apart(result, f"hook {hook.name}: the step's state")
    check_forms(step, (going_on, batch), rtol, atol, f"hook {hook.name}: the step")


def _check_rejection(hook: Hook, before: TrainState, after: TrainState) -> None:
    what = f"hook {hook.name}: after a rejected batch"
    assert_trees_equal(after.hook_state, before.hook_state, f"{what}, the hook's state")
    assert_trees_equal(after.params, before.params, f"{what}, the parameters")


def _with_batch_count(state: TrainState, count: int) -> TrainState:
    leaves, spec = tree.flatten(state)
    at = tree.paths(state).index("counters.batch_count")
    return tree.unflatten(spec, [torch.full_like(leaf, count) if i == at else leaf for i, leaf in enumerate(leaves)])


def _descend_and_reject(batch_count: int, learning_rate: float = 0.05) -> GradientTransform:
    """Gradient descent that rejects one batch, told by how many went before."""

    def update(updates: Tree, state: EmptyState, params: Tree = None, *, counters: Any, **extra: Any) -> tuple[Gated, EmptyState]:
        bad = counters.batch_count == batch_count
        silent = tree.map(lambda u: torch.where(bad, torch.full_like(u, -0.0), -learning_rate * u), updates)
        return Gated(silent, ~bad, bad), state

    return GradientTransform(lambda params: EmptyState(), update, "descend", frozenset({"counters"}))


def line() -> Tree:
    """Parameters of the regression that hooks are checked on."""
    weight = torch.arange(6, dtype=torch.float64).view(2, 3)
    return {"layer": {"weight": 0.1 * weight - 0.2, "bias": torch.full((2,), 0.3, dtype=torch.float64)}}


def points() -> dict[str, Tensor]:
    """Its batch."""
    x = torch.arange(15, dtype=torch.float64).view(5, 3)
    return {"x": torch.sin(x), "y": torch.cos(x[:, :2])}


def squared_error_of_line(params: Tree, batch: dict[str, Tensor]) -> Sums:
    """Its loss: the sum over samples of squared errors, their number, and the errors by sample."""
    errors = (batch["x"] @ params["layer"]["weight"].T + params["layer"]["bias"] - batch["y"]).square().sum(-1)
    return Sums(errors.sum(), torch.full_like(errors.sum(), errors.shape[0]), errors)
