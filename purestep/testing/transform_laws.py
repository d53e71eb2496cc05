"""The laws of gradient transforms: `check_transform`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.transform import EmptyState, Gated, GradientTransform, apply_updates, chain
from ..core.tree import Tree
from .comparing import assert_leaves_are_apart, assert_same_layout, assert_shares_no_memory, assert_trees_equal
from .forms import check_forms, check_repeats


def check_transform(
    transform: GradientTransform,
    params: Tree,
    *,
    gradient: Callable[[Tree], Tree] | None = None,
    extra: Mapping[str, Any] | None = None,
    num_steps: int = 3,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> None:
    """Check that a gradient transform keeps the laws.

    `init` and `update` are pure and repeatable and share no memory with their inputs; `update` ignores extra arguments that it does not
    know; the state keeps its structure, dtypes and shapes, and every leaf of it has a path; updates look like the parameters; a rejected
    batch leaves state and parameters bitwise; tracing, `torch.compile` and `vmap` give the eager numbers.

    Args:
        transform: To check.
        params: To run it on: any tree of tensors, float64 for the tolerances given.
        gradient: `gradient(params) -> updates`; by default the gradient of half the squared distance from 0.3.
        extra: Extra arguments of `update`.
        num_steps: Steps to take before the later laws are checked.
        rtol: Between forms, relative.
        atol: Between forms, absolute.

    Raises:
        AssertionError: Naming the law.
    """
    gradient = gradient or (lambda params: tree.map(lambda p: p - 0.3, params))
    extra, name = dict(extra or {}), transform.name
    first = check_repeats(transform.init, (params,), f"{name}: init", ["params"])
    _check_tensors(first, name)
    assert_shares_no_memory(first, params, f"{name}: the state of init")
    assert_leaves_are_apart(first, f"{name}: the state of init")
    tree.paths(first)  # raises if two leaves have one path
    _check_ignores_unknown(transform, gradient(params), first, params, extra)

    def update(params: Tree, state: Any, updates: Tree) -> dict[str, Any]:
        result, new = transform.update(updates, state, params, **extra)
        changed = {"updates": result.updates, "verdict": tuple(result[1:])} if isinstance(result, Gated) else {"updates": result}
        return {**changed, "state": new}

    state, moved = first, params
    for _ in range(num_steps):
        result, state = transform.update(gradient(moved), state, moved, **extra)
        plain = result.updates if isinstance(result, Gated) else result
        _check_updates(plain, params, name)
        assert_same_layout(state, first, f"{name}: the state after an update")
        moved = apply_updates(moved, result)
    arguments = (moved, state, gradient(moved))
    names = ["params", "state", "updates"]
    results = check_repeats(update, arguments, f"{name}: update", names)
    assert_shares_no_memory(results, dict(zip(names, arguments, strict=True)), f"{name}: the results of update")
    assert_leaves_are_apart(results["state"], f"{name}: the state of update")
    _check_rejection(transform, moved, state, gradient(moved), extra)
    check_forms(update, arguments, rtol, atol, f"{name}: update")


def _check_ignores_unknown(transform: GradientTransform, updates: Tree, state: Any, params: Tree, extra: dict[str, Any]) -> None:
    try:
        results = transform.update(updates, state, params, **extra, unknown_to_all=torch.zeros(()))
    except TypeError as error:
        if "unknown_to_all" not in str(error):
            raise
        raise AssertionError(
            f"{transform.name}: update must accept **extra: the step passes arguments that it may not know, and it ignores them; "
            f"write update(updates, state, params=None, **extra) ({error})"
        ) from error
    pair = isinstance(results, tuple) and len(results) == 2
    assert pair, f"{transform.name}: update must return the pair (updates, state), got a {type(results).__name__}"


def _check_tensors(state: Any, name: str) -> None:
    for path, leaf in tree.items(state):
        told = f"{name}: the state of init: {path or 'it'} is of type {type(leaf).__name__}; a transform keeps tensors, so wrap it"
        assert isinstance(leaf, Tensor), f"{told}: torch.tensor(...)"


def _check_updates(updates: Tree, params: Tree, name: str) -> None:
    same = tree.structure(updates) == tree.structure(params)
    assert same, f"{name}: updates have the leaves {tree.paths(updates)[:5]}, the parameters {tree.paths(params)[:5]}"
    for path, update, param in zip(tree.paths(params), tree.leaves(updates), tree.leaves(params), strict=True):
        shapes = tuple(update.shape), tuple(param.shape)
        assert shapes[0] == shapes[1], f"{name}: the update of {path} has shape {shapes[0]}, the parameter {shapes[1]}"


def _check_rejection(transform: GradientTransform, params: Tree, state: Any, updates: Tree, extra: dict[str, Any]) -> None:
    guarded = chain(_reject_all(), transform)
    before = dict(zip(guarded.init(params), (EmptyState(), state), strict=True))
    bad = tree.map(lambda u: torch.full_like(u, float("nan")), updates)
    result, after = guarded.update(bad, before, params, **extra)
    assert isinstance(result, Gated), f"{transform.name}: a chain after a gate returned {type(result).__name__}, expected Gated"
    assert_trees_equal(apply_updates(params, result), params, f"{transform.name}: parameters after a rejected batch")
    assert_trees_equal(after, before, f"{transform.name}: the state after a rejected batch")


def _reject_all() -> GradientTransform:
    def update(updates: Tree, state: EmptyState, params: Tree = None, **extra: Any) -> tuple[Gated, EmptyState]:
        no: Tensor = torch.zeros((), dtype=torch.bool)
        return Gated(updates, no, ~no), state

    return GradientTransform(lambda params: EmptyState(), update, "reject_all")
