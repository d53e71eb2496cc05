"""The mode under which a module's random functions take their bits from a key.

Functions that draw are replaced by keyed ones from `rng.py`; composite functions of `torch.nn.functional` that call dropout inside
run with the mode still on; everything else that would draw from a global generator is refused by name. What is beyond the reach of a mode
(operators called as `torch.ops.aten...`; under `torch.compile` also `rand_like`, `randn_like`, `randint_like` and `torch.normal`, which
Dynamo hides; before torch 2.13 `rand`, `randn`, `randint` and `randperm` too) is refused by `ps.compile`, which looks at the graph.
"""

import itertools
import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import RandomnessError
from . import rng


class KeyedRandomness(TorchFunctionMode):
    """Give random functions their bits from a key, by the number of the draw.

    The key is made by `make_key` at the first draw, so a forward without randomness costs nothing. `draws` counts the draws so far.
    """

    def __init__(self, make_key: Callable[[], Tensor], draws: int = 0):
        super().__init__()
        self.make_key, self.draws = make_key, draws
        self.key: Tensor | None = None

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.unflatten:
            func = torch.unflatten  # the same; the method uses super(), which Dynamo cannot call from a mode
        if keyed := _KEYED.get(func):
            return keyed(self, *args, **kwargs)
        if body := _COMPOSITE.get(func):
            with self:
                return body(*args, **kwargs)
        if (draws := _REFUSED_WHEN.get(func)) and draws(*args, **kwargs):
            name = getattr(func, "__name__", str(func))
            raise RandomnessError(
                f"{name} draws from a global generator, so the step would be no pure function; "
                "use torch.rand, randn, randint, randperm, bernoulli, normal or dropout, which take their bits from the state's seed"
            )
        return func(*args, **kwargs)

    def _draw(self) -> tuple[Tensor, int]:
        if self.key is None:
            self.key = self.make_key()
        self.draws += 1
        return self.key, self.draws

    def uniform(self, shape: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers of the next draw."""
        return rng.uniform(*self._draw(), tuple(shape), dtype)

    def normal(self, shape: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers of the next draw."""
        return rng.normal(*self._draw(), tuple(shape), dtype)


# --- dropout ------------------------------------------------------------------------------------------------------


def _mask(mode: KeyedRandomness, x: Tensor, p: float, shape: Any) -> Tensor:
    return mode.uniform(shape).to(x.device) < 1.0 - p


def _result(x: Tensor, out: Tensor, inplace: bool) -> Tensor:
    return x.copy_(out) if inplace else out


def _check_p(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability must lie in [0, 1], got {p}")


def _dropout(mode: KeyedRandomness, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    _check_p(p)
    if not training or p == 0.0:
        return input
    kept = _mask(mode, input, p, input.shape)
    return _result(input, torch.where(kept, input / (1.0 - p) if p < 1.0 else input, torch.zeros_like(input)), inplace)


def _channel_dropout(
    mode: KeyedRandomness, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, spatial: int
) -> Tensor:
    _check_p(p)
    if not training or p == 0.0:
        return input
    shape = (*input.shape[: input.ndim - spatial], *(1,) * spatial)
    kept = _mask(mode, input, p, shape)
    return _result(input, torch.where(kept, input / (1.0 - p) if p < 1.0 else input, torch.zeros_like(input)), inplace)


def _alpha_dropout(mode: KeyedRandomness, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Keep mean and variance of a self-normalising layer; Klambauer et al., arXiv:1706.02515, section 3 ("alpha dropout")."""
    _check_p(p)
    if not training or p == 0.0:
        return input
    saturation = -1.7580993408473766
    kept = _mask(mode, input, p, input.shape)
    if p == 1.0:
        return _result(input, torch.zeros_like(input), inplace)
    a = ((1.0 - p) * (1.0 + p * saturation**2)) ** -0.5
    return _result(input, a * torch.where(kept, input, torch.full_like(input, saturation)) - a * p * saturation, inplace)


def _spatial(dims: int) -> Callable:
    return lambda mode, *args, **kwargs: _channel_dropout(mode, *args, spatial=dims, **kwargs)


def _attention(
    mode: KeyedRandomness,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The fused kernel where nothing is dropped, else softmax(q k^T scale + mask), dropout, times v."""
    if dropout_p == 0.0:
        extra = {"enable_gqa": True} if enable_gqa else {}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale, **extra)
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return _dropout(mode, scores.softmax(-1), dropout_p) @ value


# --- numbers ------------------------------------------------------------------------------------------------------


def _finish(out: Tensor, device: Any = None, requires_grad: bool = False, **ignored: Any) -> Tensor:
    if ignored.get("out") is not None:
        raise RandomnessError("out= is not supported for random numbers inside a step; use the result")
    if ignored.get("generator") is not None:
        raise RandomnessError("a generator= inside the step is hidden state; leave it out, the bits come from the state's seed")
    out = out if device is None else out.to(device)
    return out.requires_grad_() if requires_grad else out


def _shape(size: tuple) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _rand(mode: KeyedRandomness, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    return _finish(mode.uniform(_shape(size or (options.pop("size"),)), dtype or torch.get_default_dtype()), **options)


def _randn(mode: KeyedRandomness, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    return _finish(mode.normal(_shape(size or (options.pop("size"),)), dtype or torch.get_default_dtype()), **options)


def _rand_like(mode: KeyedRandomness, input: Tensor, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Tensor:
    return _finish(mode.uniform(input.shape, dtype or input.dtype), device or input.device, **options)


def _randn_like(mode: KeyedRandomness, input: Tensor, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Tensor:
    return _finish(mode.normal(input.shape, dtype or input.dtype), device or input.device, **options)


def _randint(mode: KeyedRandomness, *args: Any, dtype: torch.dtype = torch.int64, **options: Any) -> Tensor:
    names = ("high", "size") if len(args) < 3 and "low" not in options else ("low", "high", "size")
    bound = dict(zip(names, args, strict=False)) | options
    low, high, size = bound.pop("low", 0), bound.pop("high"), bound.pop("size")
    return _finish(
        rng.integers(*mode._draw(), low, high, tuple(size)).to(dtype), **{k: v for k, v in options.items() if k in ("device", "generator")}
    )


def _randint_like(mode: KeyedRandomness, input: Tensor, *bounds: int, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (options.pop("low", 0), *(bounds or (options.pop("high"),)))
    return _finish(rng.integers(*mode._draw(), low, high, tuple(input.shape)).to(dtype or input.dtype), input.device, **options)


def _randperm(mode: KeyedRandomness, n: int, dtype: torch.dtype = torch.int64, **options: Any) -> Tensor:
    return _finish(rng.permutation(*mode._draw(), n).to(dtype), **options)


def _bernoulli(mode: KeyedRandomness, input: Tensor, p: float | None = None, generator: Any = None) -> Tensor:
    chance = input if p is None else p
    return _finish((mode.uniform(input.shape, torch.float64).to(input.device) < chance).to(input.dtype), generator=generator)


def _normal(mode: KeyedRandomness, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors)) if tensors else tuple(size)
    dtype = tensors[0].dtype if tensors else options.pop("dtype", None) or torch.get_default_dtype()
    noise = mode.normal(shape, dtype)
    return _finish(mean + std * (noise.to(tensors[0].device) if tensors else noise), **options)


def _in_place(draw: Callable[..., Tensor]) -> Callable:
    """The method that fills a tensor: same numbers, written into it."""

    def fill(mode: KeyedRandomness, target: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        return target.copy_(_finish(draw(mode, target, *args, **kwargs), generator=generator))

    return fill


def _uniform_values(mode: KeyedRandomness, target: Tensor, from_: float = 0.0, to: float = 1.0, **kwargs: float) -> Tensor:
    low = kwargs.get("from", from_)
    return low + (to - low) * mode.uniform(target.shape, target.dtype)


def _normal_values(mode: KeyedRandomness, target: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * mode.normal(target.shape, target.dtype)


def _exponential_values(mode: KeyedRandomness, target: Tensor, lambd: float = 1.0) -> Tensor:
    return -torch.log1p(-mode.uniform(target.shape, target.dtype)) / lambd


def _bernoulli_values(mode: KeyedRandomness, target: Tensor, p: Any = 0.5) -> Tensor:
    return (mode.uniform(target.shape, torch.float64) < p).to(target.dtype)


_KEYED: dict[Callable, Callable] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.dropout1d: _spatial(1),
    F.dropout2d: _spatial(2),
    F.dropout3d: _spatial(3),
    F.alpha_dropout: _alpha_dropout,
    F.scaled_dot_product_attention: _attention,
    torch.rand: _rand,
    torch.randn: _randn,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    torch.normal: _normal,
    Tensor.uniform_: _in_place(_uniform_values),
    Tensor.normal_: _in_place(_normal_values),
    Tensor.exponential_: _in_place(_exponential_values),
    Tensor.bernoulli_: _in_place(_bernoulli_values),
}


class _Unchecked:
    """`torch`, as seen by a function whose first question, whether a mode is on, is to be answered no."""

    overrides = types.SimpleNamespace(has_torch_function_variadic=lambda *args: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _with_mode_inside(function: Any) -> Callable:
    """The same Python body, but its first question, whether a mode is on, is answered no: what it calls still meets the mode."""
    names: dict[str, Any] = {name: (lambda *args: False) for name in function.__globals__ if name.startswith("has_torch_function")}
    if not names:
        names = {"torch": _Unchecked()}
    clone = types.FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__, function.__closure__
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


_COMPOSITE: dict[Callable, Callable] = {
    function: _with_mode_inside(function)
    for function in (
        F.multi_head_attention_forward,
        F.gumbel_softmax,
        *(getattr(nn.init, name) for name in ("uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_")),
    )
}


# --- refused ------------------------------------------------------------------------------------------------------


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _training(*args: Any, training: bool = False, **kwargs: Any) -> bool:
    return training or any(arg is True for arg in args)


def _recurrent_dropout(*args: Any, **kwargs: Any) -> bool:
    """Of `torch.lstm` and its like: the dropout rate is the one float among the arguments, followed by `train`."""
    return any(isinstance(rate, float) and rate > 0.0 and train is True for rate, train in itertools.pairwise(args))


_REFUSED_WHEN: dict[Callable, Callable[..., bool]] = {
    **{getattr(torch, name): _always for name in ("multinomial", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")},
    **{getattr(Tensor, name): _always for name in ("random_", "cauchy_", "log_normal_", "geometric_", "multinomial")},
    **{
        getattr(torch, name): _training
        for stem in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu")
        for name in (stem, f"{stem}_")
        if name != "dropout"
    },
    torch.native_dropout: _training,
    **{getattr(F, name): _training for name in ("feature_alpha_dropout", "rrelu")},
    F.fractional_max_pool2d: _always,
    F.fractional_max_pool3d: _always,
    **{getattr(torch, name): _recurrent_dropout for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
