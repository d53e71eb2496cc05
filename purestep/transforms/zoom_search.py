"""Find the length of a step by bracketing and zooming, until the loss falls enough and its slope has flattened (Wolfe's conditions).

The number of evaluations of loss and gradient is fixed when the update is captured: all `max_linesearch_steps` are made, and those
after the end change nothing.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FRACTION, GROWING, NOT_NEGATIVE, POSITIVE_LIMIT, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .inner_products import dot
from .leafwise import Leaves
from .line_search import Line, ValueFn
from .moments import widen, zeros_of_moments
from .parameters import wide_params


class ScaleByZoomLinesearchState(NamedTuple):
    """State of `scale_by_zoom_linesearch`; floats are 0-d float64."""

    learning_rate: Tensor  # length that was chosen
    value: Tensor  # loss there
    grad: Tree  # gradient there
    num_linesearch_steps: Tensor  # 0-d int64
    decrease_error: Tensor  # by how much the last length tried misses the decrease
    curvature_error: Tensor  # and the flattening

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The length that was chosen, and how many were tried."""
        return {"lr": self.learning_rate, "linesearch/steps": self.num_linesearch_steps}


class _End(NamedTuple):
    """One end of the interval: length, loss and slope."""

    length: Tensor
    value: Tensor
    slope: Tensor


class _Point(NamedTuple):
    """A length with loss and gradient."""

    length: Tensor
    value: Tensor
    grad: Leaves


class _Search(NamedTuple):
    """Where the search is."""

    count: Tensor
    latest: _Point
    slope: Tensor  # at the latest
    low: _End
    high: _End
    reference: Tensor  # length of an earlier point, for the cubic
    reference_value: Tensor
    safe: _Point  # best that falls enough
    interval_found: Tensor
    done: Tensor
    failed: Tensor
    decrease_error: Tensor
    curvature_error: Tensor


class _Rules(NamedTuple):
    """Loss and slope at length 0, the first length, and settings."""

    value: Tensor
    slope: Tensor
    guess: Tensor
    max_steps: int
    max_length: float | None
    tol: float
    increase_factor: float
    slope_rtol: float
    curv_rtol: float
    approx_dec_rtol: float | None
    interval_threshold: float


def scale_by_zoom_linesearch(
    max_linesearch_steps: int,
    max_learning_rate: float | None = None,
    tol: float = 0.0,
    increase_factor: float = 2.0,
    slope_rtol: float = 1e-4,
    curv_rtol: float = 0.9,
    approx_dec_rtol: float | None = 1e-6,
    stepsize_precision: float = 1e-5,
    initial_guess_strategy: Literal["keep", "one"] = "keep",
) -> GradientTransform:
    """Multiply the updates by a length that satisfies the strong Wolfe conditions.

        f(p + s u) <= f(p) + slope_rtol s <u, grad>        and        |<u, grad(p + s u)>| <= curv_rtol |<u, grad>|

    Needs `value` and `grad` at the parameters, and `value_fn`, the loss as a function of them. The updates point downhill: the
    learning rate before it has turned them round. If the search ends without success, the best length that falls enough is taken,
    or the last one.

    Args:
        max_linesearch_steps: Evaluations of loss and gradient; at least 1.
        max_learning_rate: Largest length. Positive; none by default.
        tol: Tolerance of both conditions. Not negative.
        increase_factor: Between lengths while an interval is sought; above 1.
        slope_rtol: Share of the decrease that the slope promises, in [0, 1].
        curv_rtol: What may be left of the slope, as a fraction in [0, 1].
        approx_dec_rtol: Accept, near the minimum where differences of losses are noise, a decrease judged by slopes, if the loss is not
            larger by this share of it; None never does.
        stepsize_precision: Length of an interval below which the search ends. Not negative.
        initial_guess_strategy: First length: that of last time, or one.

    Reference:
        Nocedal and Wright, "Numerical optimization", 2nd edition, 2006, Algorithms 3.5 and 3.6. Hager and Zhang, "Algorithm 851:
        CG_DESCENT", 2006, eq. 23 (approximate decrease).
    """
    check_whole("scale_by_zoom_linesearch", at_least(1), max_linesearch_steps=max_linesearch_steps)
    check_numbers("scale_by_zoom_linesearch", NOT_NEGATIVE, tol=tol, stepsize_precision=stepsize_precision)
    check_numbers("scale_by_zoom_linesearch", GROWING, increase_factor=increase_factor)
    check_numbers("scale_by_zoom_linesearch", FRACTION, slope_rtol=slope_rtol, curv_rtol=curv_rtol)
    if max_learning_rate is not None:
        check_numbers("scale_by_zoom_linesearch", POSITIVE_LIMIT, max_learning_rate=max_learning_rate)
    if approx_dec_rtol is not None:
        check_numbers("scale_by_zoom_linesearch", NOT_NEGATIVE, approx_dec_rtol=approx_dec_rtol)
    if initial_guess_strategy not in ("keep", "one"):
        raise ValueError(f"scale_by_zoom_linesearch: unknown initial_guess_strategy {initial_guess_strategy!r} (known: keep, one)")
    settings = (max_linesearch_steps, max_learning_rate, tol, increase_factor, slope_rtol, curv_rtol, approx_dec_rtol, stepsize_precision)

    def init(params: Tree) -> ScaleByZoomLinesearchState:
        infinite = [scalar_like(params, float("inf")) for _ in range(3)]
        zero = scalar_like(params, 0, torch.int64)
        return ScaleByZoomLinesearchState(scalar_like(params, 1.0), infinite[0], zeros_of_moments(params), zero, *infinite[1:])

    def update(
        updates: Tree,
        state: ScaleByZoomLinesearchState,
        params: Tree = None,
        *,
        value: Tensor | float,
        grad: Tree,
        value_fn: ValueFn,
        **extra: Any,
    ) -> tuple[Tree, ScaleByZoomLinesearchState]:
        leaves, structure = tree.flatten(updates)
        direction, wide_grad = widen(leaves), widen(tree.leaves(grad))
        line = Line(params, wide_params(params, "scale_by_zoom_linesearch"), direction, value_fn)
        here = torch.zeros_like(state.value) + value
        slope = dot(direction, wide_grad).to(here.device)
        guess = state.learning_rate if initial_guess_strategy == "keep" else torch.ones_like(state.learning_rate)
        rules = _Rules(here, slope, guess, *settings)
        search = _start(here, slope, wide_grad)
        for _ in range(max_linesearch_steps):
            search = tree.where(search.done | search.failed, search, _next(search, rules, line))
        length, new_value, new_grad = search.latest
        out = tree.unflatten(structure, leafwise.mul(direction, length))
        new = ScaleByZoomLinesearchState(
            length, new_value, tree.unflatten(structure, new_grad), search.count, search.decrease_error, search.curvature_error
        )
        return out, new

    return GradientTransform(init, update, "scale_by_zoom_linesearch", frozenset({"value", "grad", "value_fn"}))


def _start(value: Tensor, slope: Tensor, grad: Leaves) -> _Search:
    zero, no, infinite = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool), torch.full_like(value, float("inf"))
    point, end = _Point(zero, value, grad), _End(zero, value, slope)
    return _Search(torch.zeros_like(value, dtype=torch.int64), point, slope, end, end, zero, value, point, no, no, no, infinite, infinite)


def _next(search: _Search, rules: _Rules, line: Line) -> _Search:
    """One more evaluation: a longer step while no interval is known, else one inside it."""
    longer = torch.where(search.count == 0, rules.guess, rules.increase_factor * search.latest.length)
    at_most = torch.zeros_like(search.done)
    if rules.max_length is not None:
        at_most = longer >= rules.max_length
        longer = longer.clamp(max=rules.max_length)
    length = torch.where(search.interval_found, _middle(search), longer)
    value, grad = line.value_and_grad(length)
    slope = dot(line.direction, grad).to(value.device)
    decrease, curvature = _errors(rules, length, value, slope)
    tried = search._replace(
        count=search.count + 1,
        latest=_Point(length, value, grad),
        slope=slope,
        decrease_error=decrease,
        curvature_error=curvature,
    )
    found = tree.where(search.interval_found, _zoomed(search, tried, rules), _bracketed(search, tried, rules, at_most))
    to_safe = found.failed & ((found.safe.length > 0) | torch.isinf(decrease))
    return found._replace(latest=tree.where(to_safe, found.safe, found.latest))


def _errors(rules: _Rules, length: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """By how much a length misses the two conditions."""
    decrease = value - rules.value - rules.slope_rtol * length * rules.slope
    if rules.approx_dec_rtol is not None:
        by_slope = slope - (2 * rules.slope_rtol - 1.0) * rules.slope
        no_larger = value - rules.value - rules.approx_dec_rtol * rules.value.abs()
        decrease = torch.minimum(torch.maximum(by_slope, no_larger), decrease)
    curvature = slope.abs() - rules.curv_rtol * rules.slope.abs()
    return _positive(decrease), _positive(curvature)


def _positive(error: Tensor) -> Tensor:
    return torch.where(torch.isnan(error), float("inf"), error.clamp(min=0.0))


def _bracketed(before: _Search, tried: _Search, rules: _Rules, at_most: Tensor) -> _Search:
    """After a longer step: is the minimum between the last two?"""
    error = torch.maximum(tried.decrease_error, tried.curvature_error)
    value, slope = tried.latest.value, tried.slope
    too_high = (tried.decrease_error > 0) | ((value >= before.latest.value) & (before.count > 0))
    rising = (slope >= 0) & ~too_high
    last, new = _End(before.latest.length, before.latest.value, before.slope), _End(tried.latest.length, value, slope)
    low, high = tree.where(rising, new, last), tree.where(rising, last, new)
    interval_found = too_high | rising | (error <= rules.tol)
    done = (error <= rules.tol) | (at_most & ~interval_found)
    return tried._replace(
        low=low,
        high=high,
        reference=low.length,
        reference_value=low.value,
        safe=tree.where(tried.decrease_error <= rules.tol, tried.latest, before.safe),
        interval_found=interval_found,
        done=done,
        failed=(tried.count >= rules.max_steps) & ~done,
    )


def _zoomed(before: _Search, tried: _Search, rules: _Rules) -> _Search:
    """After a step inside the interval: which part of it holds the minimum?"""
    low, high, middle = before.low, before.high, _End(tried.latest.length, tried.latest.value, tried.slope)
    done = torch.maximum(tried.decrease_error, tried.curvature_error) <= rules.tol
    better = (tried.decrease_error <= rules.tol) & (middle.value < before.safe.value)
    safe = tree.where(better, tried.latest, before.safe)
    cut_high = (tried.decrease_error > 0) | (middle.value >= low.value)
    swap = (middle.slope * (high.length - low.length) >= 0) & ~cut_high
    from_high = cut_high | swap
    small = (high.length - low.length).abs() <= rules.interval_threshold
    return tried._replace(
        low=tree.where(cut_high, low, middle),
        high=tree.where(swap, low, tree.where(cut_high, middle, high)),
        reference=torch.where(from_high, high.length, low.length),
        reference_value=torch.where(from_high, high.value, low.value),
        safe=safe,
        done=done,
        failed=((tried.count >= rules.max_steps) | (small & (safe.length > 0))) & ~done,
    )


def _middle(search: _Search) -> Tensor:
    """A length inside the interval: the minimum of a cubic, else of a parabola, else the middle."""
    low, high = search.low, search.high
    width = (high.length - low.length).abs()
    left, right = torch.minimum(low.length, high.length), torch.maximum(low.length, high.length)
    to_high, to_reference = high.length - low.length, search.reference - low.length
    rise = high.value - low.value - low.slope * to_high
    rise_reference = search.reference_value - low.value - low.slope * to_reference
    scale = (to_high * to_reference) ** 2 * (to_high - to_reference)
    a = (to_reference**2 * rise - to_high**2 * rise_reference) / scale
    b = (-(to_reference**3) * rise + to_high**3 * rise_reference) / scale
    cubic = low.length + (-b + torch.sqrt(b * b - 3.0 * a * low.slope)) / (3.0 * a)
    parabola = low.length - low.slope / (2.0 * rise / to_high**2)
    chosen = torch.where((parabola > left + 0.1 * width) & (parabola < right - 0.1 * width), parabola, (low.length + high.length) / 2)
    return torch.where((cubic > left + 0.2 * width) & (cubic < right - 0.2 * width), cubic, chosen)
