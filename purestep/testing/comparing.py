"""Compare trees leaf by leaf: bitwise, or within a tolerance; and find memory that two of them share."""

from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Tree


def assert_trees_equal(actual: Tree, expected: Tree, what: str = "trees") -> None:
    """Demand the same structure, dtypes, devices, shapes and bits; NaN equals NaN of the same bits, 0.0 differs from -0.0.

    Args:
        actual: Any tree.
        expected: Likewise.
        what: How a message begins.

    Raises:
        AssertionError: Naming the first leaf that differs.
    """
    for path, one, other in _pairs(actual, expected, what):
        if isinstance(one, Tensor):
            assert torch.equal(_bits(one), _bits(other)), f"{what}: {path or 'leaf'} differs in bits, by at most {_distance(one, other)}"
        else:
            assert one == other, f"{what}: {path or 'leaf'} is {one!r}, expected {other!r}"


def assert_trees_close(actual: Tree, expected: Tree, *, rtol: float, atol: float, what: str = "trees") -> None:
    """Demand the same structure, dtypes, devices and shapes, and elements with `|actual - expected| <= atol + rtol |expected|`.

    NaN is close to NaN. Booleans and integers must be equal.

    Raises:
        AssertionError: Naming the first leaf that differs.
    """
    for path, one, other in _pairs(actual, expected, what):
        if not isinstance(one, Tensor):
            assert one == other, f"{what}: {path or 'leaf'} is {one!r}, expected {other!r}"
            continue
        exact = not (one.is_floating_point() or one.is_complex())
        near = torch.equal(one, other) if exact else torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
        assert near, f"{what}: {path or 'leaf'} differs by {_distance(one, other)}, allowed are {atol} + {rtol} |expected|"


def assert_same_layout(actual: Tree, expected: Tree, what: str) -> None:
    """Demand the same structure, dtypes, devices and shapes, whatever the values."""
    for _ in _pairs(actual, expected, what):
        pass


def assert_shares_no_memory(results: Tree, arguments: Tree, what: str) -> None:
    """Demand that a result is an argument itself, or is none of its memory.

    Raises:
        AssertionError: Naming the leaves.
    """
    given = {leaf.untyped_storage().data_ptr(): (path, leaf) for path, leaf in tree.items(arguments) if _has_memory(leaf)}
    for path, leaf in tree.items(results):
        if _has_memory(leaf):
            owner, argument = given.get(leaf.untyped_storage().data_ptr(), ("", leaf))
            assert argument is leaf, f"{what}: {path} is a view of the argument {owner}; clone it"


def assert_leaves_are_apart(state: Tree, what: str) -> None:
    """Demand that no two leaves share memory: a state is written and given away leaf by leaf.

    Raises:
        AssertionError: Naming the leaves.
    """
    seen: dict[int, str] = {}
    for path, leaf in tree.items(state):
        if _has_memory(leaf):
            where = leaf.untyped_storage().data_ptr()
            assert where not in seen, f"{what}: {path} shares its memory with {seen[where]}; clone one of them"
            seen[where] = path


def _has_memory(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.numel() > 0


def _pairs(actual: Tree, expected: Tree, what: str) -> list[tuple[str, Any, Any]]:
    have, want = tree.structure(actual), tree.structure(expected)
    assert have == want, f"{what}: the structure differs: {_difference(actual, expected)}"
    found = list(zip(tree.paths(actual), tree.leaves(actual), tree.leaves(expected), strict=True))
    for path, one, other in found:
        assert type(one) is type(other) or (isinstance(one, Tensor) and isinstance(other, Tensor)), (
            f"{what}: {path or 'leaf'} is a {type(one).__name__}, expected a {type(other).__name__}"
        )
        if isinstance(one, Tensor):
            layout, wanted = (one.dtype, one.device, tuple(one.shape)), (other.dtype, other.device, tuple(other.shape))
            assert layout == wanted, f"{what}: {path or 'leaf'} is {_text(one)}, expected {_text(other)}"
    return found


def _difference(actual: Tree, expected: Tree) -> str:
    have, want = set(tree.paths(actual)), set(tree.paths(expected))
    if have == want:
        return f"{tree.structure(actual)}, expected {tree.structure(expected)}"
    return f"unexpected leaves {sorted(have - want)[:5]}, missing leaves {sorted(want - have)[:5]}"


def _text(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)} on {leaf.device}"


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def _distance(one: Tensor, other: Tensor) -> float:
    wide = torch.complex128 if one.is_complex() else torch.float64
    return float((one.to(wide) - other.to(wide)).abs().max()) if one.numel() else 0.0
