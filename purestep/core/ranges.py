"""The ranges that hyperparameters may lie in, and the refusal of what lies outside, before any work.

Of a tensor only the kind is looked at: it comes from `inject_hyperparams`, from `vmap` or from a trace, and reading it would wait for the
device.
"""

import math
from collections.abc import Callable
from numbers import Integral, Rational, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Range(NamedTuple):
    """Some numbers, and how an error names them. NaN is in none: it fails every comparison."""

    words: str  # what follows "must"
    holds: Callable[[Any], bool]


FINITE = Range("be finite", math.isfinite)
NOT_NEGATIVE = Range("lie in [0, inf)", lambda x: 0 <= x < math.inf)
NOT_POSITIVE = Range("lie in (-inf, 0]", lambda x: -math.inf < x <= 0)
POSITIVE = Range("lie in (0, inf)", lambda x: 0 < x < math.inf)
DECAY = Range("lie in [0, 1)", lambda x: 0 <= x < 1)
FRACTION = Range("lie in [0, 1]", lambda x: 0 <= x <= 1)
POSITIVE_FRACTION = Range("lie in (0, 1]", lambda x: 0 < x <= 1)
SHRINKING = Range("lie in (0, 1)", lambda x: 0 < x < 1)
GROWING = Range("lie in (1, inf)", lambda x: 1 < x < math.inf)
LIMIT = Range("lie in [0, inf]", lambda x: x >= 0)
"""Of an upper bound: infinity bounds nothing."""
POSITIVE_LIMIT = Range("lie in (0, inf]", lambda x: x > 0)
_LARGEST = 2**63 - 1  # whole number that a tensor can hold


def at_least(least: int) -> Range:
    """Numbers from `least` on."""
    return Range(f"be at least {least}", lambda x: least <= x < math.inf)


def check_numbers(function: str, allowed: Range, **arguments: object) -> None:
    """Refuse numbers outside a range.

    Args:
        function: Name of the function whose arguments these are.
        allowed: Where they must lie.
        arguments: Values by the names that the caller knows them by; tensors pass.

    Raises:
        TypeError: If one is no number, or a tensor of several. A bool is none, nor is a `Fraction`, by which no tensor can be multiplied.
        ValueError: If one lies elsewhere, is NaN, or is a whole number that does not fit into 64 bits.
    """
    for name, value in arguments.items():
        if callable(value):
            raise TypeError(f"{function}: {name} must be a number, got {value!r}; inject_hyperparams(...) drives it by a schedule")
        _check(function, allowed, name, value, "a number")


def check_schedulable(function: str, allowed: Range, **arguments: object) -> None:
    """`check_numbers` for arguments that may be schedules too; these pass, as their values are known only later."""
    for name, value in arguments.items():
        if not callable(value):
            _check(function, allowed, name, value, "a number or a schedule")


def check_whole(function: str, allowed: Range, **arguments: object) -> None:
    """`check_numbers` for arguments that count something: 2.0 is refused too, with TypeError."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor | Integral):
            raise TypeError(f"{function}: {name} must be a whole number and {allowed.words}, got {value!r}")
        _check(function, allowed, name, value, "a whole number")


def _check(function: str, allowed: Range, name: str, value: object, kind: str) -> None:
    if isinstance(value, Tensor):
        if value.ndim or value.dtype is torch.bool or value.is_complex():
            raise TypeError(
                f"{function}: {name} must be {kind} or a real tensor of shape (), got {value.dtype} of shape {tuple(value.shape)}"
            )
        return
    is_number = isinstance(value, Integral) or (isinstance(value, Real) and not isinstance(value, Rational))
    if isinstance(value, bool) or not is_number:
        raise TypeError(f"{function}: {name} must be {kind} and {allowed.words}, got {value!r}")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{function}: {name} must {allowed.words} and fit into 64 bits, got a number of {value.bit_length()} bits")
    if not allowed.holds(value):
        raise ValueError(f"{function}: {name} must {allowed.words}, got {value}")
