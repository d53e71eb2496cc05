"""Random bits as a pure function of a key, drawn inside the graph.

A key is a 0-d int64 tensor. `fold_in` derives the key of a step from the seed; a draw takes the bits of Philox4x32-10 at counter
(element, draw number), so eager, traced, compiled and mapped steps see the same bits. `KeyedRandomness` gives a module's dropout,
`rand`, `normal_` and the like their bits in this way. The global generators are never touched.

Reference:
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011, section 4.1 and table 2 (Philox4x32-10).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

TRAINING, INITIALISATION, HOOKS, ROUNDING, CHILDREN = range(5)
"""Purposes of a key: streams of different purposes are independent."""

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Sequence[Tensor | int], key: tuple[Tensor, Tensor]) -> Words:
    """Four 32-bit words (held in int64) for a counter of four words and a key of two; all broadcast."""
    # int64 products wrap modulo 2^64, so their bit patterns are those of the unsigned products that Philox asks for
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, p1 & _WORD, ((p0 >> 32) & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3  # type: ignore[return-value]


def _halves(key: Tensor) -> tuple[Tensor, Tensor]:
    return key & _WORD, (key >> 32) & _WORD


def fold_in(key: Tensor, data: Tensor | int, rank: Tensor | int = 0, purpose: int = TRAINING) -> Tensor:
    """Derive a new key; different (data, rank, purpose) give independent streams.

    Args:
        key: 0-d int64.
        data: 0-d int64 or int, for instance `batch_count`.
        rank: Of the process, so that ranks draw different masks.
        purpose: One of the constants of this module.

    Returns:
        0-d int64.
    """
    data = data if isinstance(data, Tensor) else torch.full_like(key, data)
    w0, w1, _, _ = philox((data & _WORD, (data >> 32) & _WORD, rank, purpose), _halves(key))
    return w0 | (w1 << 32)


def bits(key: Tensor, draw: int | Tensor, shape: Sequence[int]) -> Tensor:
    """32 random bits an element, as int64 in [0, 2^32).

    Args:
        key: 0-d int64.
        draw: Number of this draw from the key; each gives independent bits.
        shape: Of the result.
    """
    size = math.prod(shape)
    words = _words(key, draw, -(-size // 4))
    return torch.cat(words)[:size].view(shape)


def _words(key: Tensor, draw: int | Tensor, count: int) -> Words:
    position = torch.arange(count, device=key.device)
    zero = key & 0  # a tensor of the key's own batching, so that members of a `vmap` stay apart
    return philox((position & _WORD, (position >> 32) & _WORD, zero + draw, zero), _halves(key))


def uniform(key: Tensor, draw: int | Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in [0, 1): multiples of 2^-53 for float64, else of 2^-24, then rounded down to `dtype`'s precision.

    Args:
        key: 0-d int64; the result is on its device.
        draw: Number of this draw from the key.
    """
    size = math.prod(shape)
    if dtype == torch.float64:
        w0, w1, w2, w3 = _words(key, draw, -(-size // 2))
        pairs = [((high >> 5) * 2**26 + (low >> 6)).to(torch.float64) * 2.0**-53 for high, low in ((w0, w1), (w2, w3))]
        return torch.cat(pairs)[:size].view(shape)
    mantissa = {torch.bfloat16: 8, torch.float16: 11}.get(dtype, 24)  # never rounds up to 1
    words = [(word >> (32 - mantissa)).to(torch.float32) * 2.0**-mantissa for word in _words(key, draw, -(-size // 4))]
    return torch.cat(words)[:size].view(shape).to(dtype)


def normal(key: Tensor, draw: int | Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, by Box and Muller's method; float64 or float32 inside.

    The bits behind them are the same everywhere; logarithm and cosine may differ in the last place between backends.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    size = math.prod(shape)
    half = -(-size // 2)
    both = uniform(key, draw, (2, half), wide)
    radius, angle = torch.sqrt(-2.0 * torch.log1p(-both[0])), both[1] * (2.0 * math.pi)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:size].view(shape).to(dtype)


def integers(key: Tensor, draw: int | Tensor, low: int, high: int, shape: Sequence[int]) -> Tensor:
    """Whole numbers in [low, high), int64; a range of at most 2^31. The bias is below range / 2^32."""
    if not 0 < high - low <= 2**31:
        raise ValueError(f"integers: the range [{low}, {high}) must hold between 1 and 2^31 numbers")
    return low + ((bits(key, draw, shape) * (high - low)) >> 32)


def permutation(key: Tensor, draw: int | Tensor, size: int) -> Tensor:
    """A random order of 0 .. size-1, int64."""
    high, low = bits(key, draw, (2, size)).unbind(0)
    return torch.argsort(((high >> 1) << 32) | low)


def child_key(key: Tensor, number: Any) -> Tensor:
    """An independent key for the `number`-th user of a key."""
    return fold_in(key, number, purpose=CHILDREN)
