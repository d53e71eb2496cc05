"""Turn any numeric argument of a transform into a leaf of its state: `inject_hyperparams`."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.schedule import Hyperparam, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree


class InjectHyperparamsState(NamedTuple):
    """State of `inject_hyperparams`."""

    hyperparams: dict[str, Hyperparam]
    inner_state: Any

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The values of the latest update."""
        return {name: hyperparam.value for name, hyperparam in self.hyperparams.items()}


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransform], static_args: str | Iterable[str] = ()
) -> Callable[..., GradientTransform]:
    """Make a factory whose numbers become leaves of the state, changed by `set_hyperparams` or driven by schedules.

    `inject_hyperparams(adam)(learning_rate=1e-3, b2=schedule)` calls `adam` anew in each update, with 0-d float64 tensors. Learning
    rates and weight decays of this package are leaves already and are handed on as they are.

    Args:
        inner_factory: Any function that returns a transform. An argument becomes a leaf if its annotation admits a float, or, without
            annotation, if it is given a float; a function of the count makes it a schedule. Integers and booleans stay, unless the
            annotation admits a float.
        static_args: Names of arguments to hand on as they are.

    Raises:
        ValueError: If a static argument is none of the factory's.

    Reference:
        optax 0.2.8 `inject_hyperparams`.
    """
    signature = inspect.signature(inner_factory)
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    if unknown := static - set(signature.parameters):
        raise ValueError(f"static_args {sorted(unknown)} are not among the arguments {sorted(signature.parameters)}")

    def make(*args: Any, **kwargs: Any) -> GradientTransform:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        dynamic = {
            name: value
            for name, value in bound.arguments.items()
            if name not in static and _is_dynamic(value, signature.parameters[name].annotation)
        }

        def build(values: Mapping[str, Any]) -> GradientTransform:
            filled = inspect.BoundArguments(signature, {**bound.arguments, **values})
            return inner_factory(*filled.args, **filled.kwargs)

        # reports wrong arguments, and knows the name and the needs; a factory sees no schedule, here as later
        example = build({name: value(scalar_like((), 0, torch.int64)) for name, value in dynamic.items() if callable(value)})

        def init(params: Tree) -> InjectHyperparamsState:
            hyperparams = {name: init_hyperparam(value, params) for name, value in dynamic.items()}
            return InjectHyperparamsState(hyperparams, build(values_of(hyperparams)).init(params))

        def update(updates: Tree, state: InjectHyperparamsState, params: Tree = None, **extra: Any) -> tuple[Any, InjectHyperparamsState]:
            hyperparams = {name: next_hyperparam(value, state.hyperparams[name]) for name, value in dynamic.items()}
            inner = build(values_of(hyperparams))
            returned, inner_state = inner.update(updates, state.inner_state, params, **extra)
            return returned, InjectHyperparamsState(hyperparams, inner_state)

        return GradientTransform(init, update, example.name, example.needs, _scale_loss_of(example))

    return make


def values_of(hyperparams: Mapping[str, Hyperparam]) -> dict[str, Tensor]:
    """The values by name."""
    return {name: hyperparam.value for name, hyperparam in hyperparams.items()}


def _is_dynamic(value: Any, annotation: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    if annotation is inspect.Parameter.empty:
        return isinstance(value, float) or callable(value)
    admitted = typing.get_args(annotation) if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) else (annotation,)
    is_leaf_already = any(typing.get_origin(option) is Callable for option in admitted)
    return float in admitted and not is_leaf_already and (isinstance(value, int | float) or callable(value))


def _scale_loss_of(inner: GradientTransform) -> Callable[[Tensor, InjectHyperparamsState], Tensor] | None:
    scale = inner.scale_loss
    return None if scale is None else lambda loss, state: scale(loss, state.inner_state)
