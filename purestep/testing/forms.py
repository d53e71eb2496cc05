"""The forms in which a pure function must give the same numbers: traced, compiled by Dynamo, mapped by `vmap`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ..core import tree
from .comparing import assert_trees_close, assert_trees_equal


def check_repeats(fn: Callable[..., Any], arguments: tuple[Any, ...], what: str, names: Sequence[str]) -> Any:
    """Demand that a call changes neither its arguments nor the global generator, and that a second one gives the same bits.

    Args:
        fn: To call.
        arguments: Trees.
        what: How a message begins.
        names: Of the arguments, for messages.

    Returns:
        The result.
    """
    before, generator = tree.map(_copy, arguments), torch.get_rng_state()
    result = fn(*arguments)
    named, kept = (dict(zip(names, trees, strict=True)) for trees in (arguments, before))
    assert_trees_equal(named, kept, f"{what} changed its arguments")
    assert_trees_equal(fn(*arguments), result, f"{what}, called twice, gave two results")
    assert torch.equal(torch.get_rng_state(), generator), f"{what} drew from torch's global generator; take bits from a key (ps.rng)"
    return result


def check_forms(fn: Callable[..., Any], arguments: tuple[Any, ...], rtol: float, atol: float, what: str) -> None:
    """Demand that `fn` gives the same numbers traced, under `torch.compile(fullgraph=True)`, and mapped over two copies."""
    expected = fn(*arguments)
    leaves, spec = tree.flatten(arguments)

    def flat(*leaves: Any) -> list[Any]:
        return tree.leaves(fn(*tree.unflatten(spec, leaves)))

    with _reading_told(f"{what} cannot be traced"):
        traced = tree.unflatten(tree.structure(expected), make_fx(flat)(*leaves)(*leaves))
    assert_trees_close(traced, expected, rtol=rtol, atol=atol, what=f"{what}, traced by make_fx")
    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")(*arguments)
    assert_trees_close(compiled, expected, rtol=rtol, atol=atol, what=f"{what}, under torch.compile")
    pairs = [torch.stack([leaf, leaf]) for leaf in leaves]
    mapped = torch.func.vmap(lambda *leaves: tuple(flat(*leaves)))(*pairs)
    for member in (0, 1):
        one = tree.unflatten(tree.structure(expected), [leaf[member] for leaf in mapped])
        assert_trees_close(one, expected, rtol=rtol, atol=atol, what=f"{what}, member {member} under vmap")


@contextmanager
def _reading_told(what: str) -> Iterator[None]:
    """Torch says of a number read from a tensor that it cannot be traced; say whose it is, and what to write."""
    try:
        yield
    except RuntimeError as error:
        advice = "it must not read numbers from tensors, as if, float(), int() and .item() do: torch.where takes the place of if"
        raise AssertionError(f"{what}; {advice} ({error})") from error


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
