"""Divide the updates by the root of their squares: of a running mean (`scale_by_rms`, `scale_by_stddev`), or a sum (`scale_by_rss`)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .leafwise import Leaves
from .moments import bias_correction as correction_of
from .moments import decay_mean, decay_squares, magnitude_squared, widen, zeros_of_moments, zeros_of_squares


class ScaleByRmsState(NamedTuple):
    """State of `scale_by_rms`."""

    count: Tensor  # 0-d int64, updates so far
    nu: Tree  # running mean of squared updates


def scale_by_rms(
    decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0, eps_in_sqrt: bool = True, bias_correction: bool = False
) -> GradientTransform:
    """Divide by the root of the running mean of squares: `v <- decay v + (1 - decay) u^2; u <- u / sqrt(v + eps)`.

    Args:
        decay: In [0, 1); torch calls it `alpha`.
        eps: Added inside the root, or outside with `eps_in_sqrt=False`, as torch does. Not negative.
        initial_scale: What the mean of squares starts from. Not negative.
        eps_in_sqrt: See `eps`.
        bias_correction: Divide v by `1 - decay^t`.

    Reference:
        Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012.
    """
    check_numbers("scale_by_rms", DECAY, decay=decay)
    check_numbers("scale_by_rms", NOT_NEGATIVE, eps=eps, initial_scale=initial_scale)

    def init(params: Tree) -> ScaleByRmsState:
        return ScaleByRmsState(scalar_like(params, 0, torch.int64), tree.map(lambda v: v + initial_scale, zeros_of_squares(params)))

    def update(updates: Tree, state: ScaleByRmsState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByRmsState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        nu = decay_squares(tree.leaves(state.nu), wide, decay)
        corrected = leafwise.div(nu, correction_of(decay, count)) if bias_correction else nu
        out = leafwise.div(wide, root(corrected, eps, eps_in_sqrt))
        return tree.unflatten(structure, out), ScaleByRmsState(count, tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_rms")


def root(squares: Leaves, eps: float, eps_in_sqrt: bool) -> Leaves:
    """`sqrt(squares + eps)`, or `sqrt(squares) + eps`."""
    return leafwise.sqrt(leafwise.add(squares, eps)) if eps_in_sqrt else leafwise.add(leafwise.sqrt(squares), eps)


class ScaleByStddevState(NamedTuple):
    """State of `scale_by_stddev`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    nu: Tree  # running mean of squared updates


def scale_by_stddev(
    decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0, eps_in_sqrt: bool = True, bias_correction: bool = False
) -> GradientTransform:
    """Divide by a running standard deviation: `u <- u / sqrt(v - m^2 + eps)`. Arguments as in `scale_by_rms`.

    torch calls it `RMSprop(centered=True)`, with `eps_in_sqrt=False`.

    Args:
        decay: Of the means of updates and squares, in [0, 1).
        eps: Added inside the root, or outside with `eps_in_sqrt=False`, as torch does. Not negative.
        initial_scale: What the mean of squares starts from. Not negative.
        eps_in_sqrt: See `eps`.
        bias_correction: Divide both means by `1 - decay^t`.

    Reference:
        Graves, "Generating sequences with recurrent neural networks", 2013, equations 38 to 45. arXiv:1308.0850
    """
    check_numbers("scale_by_stddev", DECAY, decay=decay)
    check_numbers("scale_by_stddev", NOT_NEGATIVE, eps=eps, initial_scale=initial_scale)

    def init(params: Tree) -> ScaleByStddevState:
        nu = tree.map(lambda v: v + initial_scale, zeros_of_squares(params))
        return ScaleByStddevState(scalar_like(params, 0, torch.int64), zeros_of_moments(params), nu)

    def update(updates: Tree, state: ScaleByStddevState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByStddevState]:
        leaves, structure = tree.flatten(updates)
        wide, count = widen(leaves), state.count + 1
        mu, nu = decay_mean(tree.leaves(state.mu), wide, decay), decay_squares(tree.leaves(state.nu), wide, decay)
        mean, squares = mu, nu
        if bias_correction:
            correction = correction_of(decay, count)
            mean, squares = leafwise.div(mu, correction), leafwise.div(nu, correction)
        # rounding can leave a variance just below zero
        variance = [v.clamp(min=0) for v in leafwise.sub(squares, magnitude_squared(mean))]
        out = leafwise.div(wide, root(variance, eps, eps_in_sqrt))
        return tree.unflatten(structure, out), ScaleByStddevState(count, tree.unflatten(structure, mu), tree.unflatten(structure, nu))

    return GradientTransform(init, update, "scale_by_stddev")


class ScaleByRssState(NamedTuple):
    """State of `scale_by_rss`."""

    sum_of_squares: Tree  # of all updates so far, and the initial value


def scale_by_rss(initial_accumulator_value: float = 0.1, eps: float = 1e-7, *, eps_in_sqrt: bool = True) -> GradientTransform:
    """Divide by the root of the sum of all squares so far: `s <- s + u^2; u <- u / sqrt(s + eps)`, 0 where s is 0.

    Args:
        initial_accumulator_value: What the sum starts from; 0 in torch. Not negative.
        eps: Added inside the root, or outside with `eps_in_sqrt=False`, as torch does. Not negative.
        eps_in_sqrt: See `eps`.

    Reference:
        Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization", 2011.
    """
    check_numbers("scale_by_rss", NOT_NEGATIVE, initial_accumulator_value=initial_accumulator_value, eps=eps)

    def init(params: Tree) -> ScaleByRssState:
        return ScaleByRssState(tree.map(lambda s: s + initial_accumulator_value, zeros_of_squares(params)))

    def update(updates: Tree, state: ScaleByRssState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByRssState]:
        leaves, structure = tree.flatten(updates)
        wide = widen(leaves)
        sums = leafwise.add(tree.leaves(state.sum_of_squares), magnitude_squared(wide))
        # a sum of 0 means that every update so far was 0, so any positive denominator gives 0
        denominators = root([torch.where(s > 0, s, 1.0) for s in sums], eps, eps_in_sqrt)
        return tree.unflatten(structure, leafwise.div(wide, denominators)), ScaleByRssState(tree.unflatten(structure, sums))

    return GradientTransform(init, update, "scale_by_rss")
