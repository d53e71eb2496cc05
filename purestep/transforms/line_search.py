"""Find the length of a step along given updates by evaluating the loss on the way: backtracking.

The number of evaluations is fixed when the update is captured: all of them are made, and the first that satisfies is chosen.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import FRACTION, NOT_NEGATIVE, POSITIVE_LIMIT, SHRINKING, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .inner_products import dot
from .leafwise import Leaves
from .moments import widen, zeros_of_moments
from .parameters import wide_params

ValueFn = Callable[[Tree], Tensor]


class Line(NamedTuple):
    """The loss as a function of the length of a step."""

    params: Tree
    start: Leaves
    direction: Leaves
    value_fn: ValueFn

    def point(self, length: Tensor) -> Leaves:
        """Parameters after a step of this length, wide."""
        return leafwise.add(self.start, leafwise.mul(self.direction, length))

    def value(self, length: Tensor) -> Tensor:
        """Loss there, 0-d float64."""
        return self._loss(*self.point(length)).to(torch.float64)

    def value_and_grad(self, length: Tensor) -> tuple[Tensor, Leaves]:
        """Loss and gradient there."""
        point = self.point(length)
        grads, value = torch.func.grad_and_value(self._loss, argnums=tuple(range(len(point))))(*point)
        return value.to(torch.float64), list(grads)

    def _loss(self, *leaves: Tensor) -> Tensor:
        like, structure = tree.flatten(self.params)
        return self.value_fn(tree.unflatten(structure, [leaf.to(p.dtype) for leaf, p in zip(leaves, like, strict=True)]))


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """State of `scale_by_backtracking_linesearch`; floats are 0-d float64."""

    learning_rate: Tensor  # length that was chosen
    value: Tensor  # loss there
    grad: Tree | tuple[()]  # gradient there, if stored
    num_linesearch_steps: Tensor  # 0-d int64
    decrease_error: Tensor  # by how much the chosen length misses the condition

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The length that was chosen, and how many were tried."""
        return {"lr": self.learning_rate, "linesearch/steps": self.num_linesearch_steps}


def scale_by_backtracking_linesearch(
    max_backtracking_steps: int,
    slope_rtol: float = 1e-4,
    decrease_factor: float = 0.8,
    increase_factor: float = 1.5,
    max_learning_rate: float = 1.0,
    atol: float = 0.0,
    rtol: float = 0.0,
    store_grad: bool = False,
) -> GradientTransform:
    """Shrink the updates until the loss falls enough: `f(p + s u) <= (1 + rtol) f(p) + s slope_rtol <u, grad> + atol`.

    Needs `value` and `grad` at the parameters, and `value_fn`, the loss as a function of them. The updates point downhill: the
    learning rate before it has turned them round. If no length satisfies, the last is taken, or 0 where the loss is not finite.

    Args:
        max_backtracking_steps: Lengths tried after the first; at least 0.
        slope_rtol: Share of the decrease that the slope promises, in [0, 1].
        decrease_factor: From one length to the next, in (0, 1).
        increase_factor: From the length chosen last time to the first one tried now. Positive.
        max_learning_rate: Largest length. Positive.
        atol: Absolute tolerance, in the units of the loss. Not negative.
        rtol: Relative tolerance. Not negative.
        store_grad: Keep the gradient at the new parameters in the state, which costs one evaluation.

    Reference:
        Armijo, "Minimization of functions having Lipschitz continuous first partial derivatives", 1966. Vaswani et al., "Painless
        stochastic gradient", 2019, Algorithm 2 (the increase). arXiv:1905.09997
    """
    check_whole("scale_by_backtracking_linesearch", at_least(0), max_backtracking_steps=max_backtracking_steps)
    check_numbers("scale_by_backtracking_linesearch", FRACTION, slope_rtol=slope_rtol)
    check_numbers("scale_by_backtracking_linesearch", SHRINKING, decrease_factor=decrease_factor)
    check_numbers("scale_by_backtracking_linesearch", POSITIVE_LIMIT, increase_factor=increase_factor, max_learning_rate=max_learning_rate)
    check_numbers("scale_by_backtracking_linesearch", NOT_NEGATIVE, atol=atol, rtol=rtol)

    def init(params: Tree) -> ScaleByBacktrackingLinesearchState:
        infinity = scalar_like(params, float("inf"))
        grad = zeros_of_moments(params) if store_grad else ()
        return ScaleByBacktrackingLinesearchState(
            scalar_like(params, 1.0), infinity, grad, scalar_like(params, 0, torch.int64), infinity.clone()
        )

    def update(
        updates: Tree,
        state: ScaleByBacktrackingLinesearchState,
        params: Tree = None,
        *,
        value: Tensor | float,
        grad: Tree,
        value_fn: ValueFn,
        **extra: Any,
    ) -> tuple[Tree, ScaleByBacktrackingLinesearchState]:
        leaves, structure = tree.flatten(updates)
        direction = widen(leaves)
        line = Line(params, wide_params(params, "scale_by_backtracking_linesearch"), direction, value_fn)
        here = torch.zeros_like(state.value) + value
        slope = dot(direction, widen(tree.leaves(grad))).to(here.device)
        length = (increase_factor * state.learning_rate).clamp(max=max_learning_rate)
        found, error = here, torch.full_like(here, float("inf"))
        chosen, tried = length, torch.zeros_like(state.num_linesearch_steps)
        for number in range(max_backtracking_steps + 1):
            length = length * decrease_factor if number else length
            new_value = line.value(length)
            new_error = _not_nan(new_value - (1.0 + rtol) * here - length * slope_rtol * slope).clamp(min=0.0)
            searching = ~(error <= atol)
            chosen, found = torch.where(searching, length, chosen), torch.where(searching, new_value, found)
            error, tried = torch.where(searching, new_error, error), tried + searching
        chosen = torch.where(torch.isinf(error), 0.0, chosen)
        new_grad = tree.unflatten(structure, line.value_and_grad(chosen)[1]) if store_grad else ()
        out = tree.unflatten(structure, leafwise.mul(direction, chosen))
        return out, ScaleByBacktrackingLinesearchState(chosen, found, new_grad, tried, error)

    return GradientTransform(init, update, "scale_by_backtracking_linesearch", frozenset({"value", "grad", "value_fn"}))


def _not_nan(error: Tensor) -> Tensor:
    return torch.where(torch.isnan(error), float("inf"), error)
