"""The laws of hooks: `check_hook`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook
from ..core.loss import Sums
from ..core.schedule import scalar_like
from ..core.state import TrainState
from ..core.step import Step, init_state, make_step
from ..core.transform import EmptyState, Gated, GradientTransform, silence, stateless
from ..core.tree import Tree
from ..errors import StateError
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
    optimizer, what = _descend(), f"hook {hook.name}"
    step = make_step(loss_fn, optimizer, (hook,))
    first = check_repeats(lambda params: init_state(params, optimizer, (hook,)), (params,), f"{what}: init", ["params"])
    assert_shares_no_memory(first, (params, batch), f"{what}: the first state")
    assert_leaves_are_apart(first, f"{what}: the first state")
    state, metrics = _stepped(step, first, batch, what)
    for _ in range(1, num_steps):
        assert_same_layout(state, first, f"{what}: the state after a step")
        earlier = metrics
        state, metrics = step(state, batch)
        assert_same_layout(metrics, earlier, f"{what}: the metrics of a step")
    result, _ = check_repeats(step, (state, batch), f"{what}: the step", ["state", "batch"])
    assert_shares_no_memory(result, (state, batch), f"{what}: the step's state")
    assert_leaves_are_apart(result, f"{what}: the step's state")
    _check_rejection(hook, make_step(loss_fn, _reject(), (hook,)), state, batch)
    check_forms(step, (state, batch), rtol, atol, f"{what}: the step")


def _stepped(step: Step, state: TrainState, batch: Tree, what: str) -> tuple[TrainState, dict[str, Tensor]]:
    """One step; that it refuses a state of another form is a law broken by the hook."""
    try:
        return step(state, batch)
    except StateError as error:
        raise AssertionError(f"{what}: the state after a step: {error}") from error


def _check_rejection(hook: Hook, rejecting_step: Step, before: TrainState, batch: Tree) -> None:
    after, _ = rejecting_step(before, batch)
    assert_trees_equal(after.hook_state, before.hook_state, f"hook {hook.name}: its state after a rejected batch")
    assert_trees_equal(after.params, before.params, f"hook {hook.name}: the parameters after a rejected batch")


def _descend(learning_rate: float = 0.05) -> GradientTransform:
    """Gradient descent."""
    return stateless(lambda updates, params: tree.map(lambda u: -learning_rate * u, updates), "descend")


def _reject() -> GradientTransform:
    """A gate that rejects every batch."""

    def update(updates: Tree, state: EmptyState, params: Tree = None, **extra: Any) -> tuple[Gated, EmptyState]:
        no = scalar_like(updates, False, torch.bool)
        return Gated(silence(updates, no), no, ~no), state

    return GradientTransform(lambda params: EmptyState(), update, "reject")


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
