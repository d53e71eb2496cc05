"""Transforms of transforms, in signatures that JSON can hold: a list for `chain(*parts)`, patterns for masks and labels."""

from collections.abc import Callable, Mapping, Sequence

from ..core import selection, transform
from ..core.transform import GradientTransform


def _chain(parts: Sequence[GradientTransform], name: str = "chain") -> GradientTransform:
    """Run transforms in order.

    Args:
        parts: In order of execution.
        name: Under which the state is kept and metrics are reported.
    """
    return transform.chain(*parts, name=name)


def _masked(inner: GradientTransform, mask: str | Sequence[str]) -> GradientTransform:
    """Apply a transform to some parameters; the others pass untouched and have no state.

    Args:
        inner: What is applied.
        mask: Patterns of the parameters.
    """
    return selection.masked(inner, mask)


def _partition(
    transforms: Mapping[str, GradientTransform], param_labels: Sequence[tuple[str, str]], name: str = "partition"
) -> GradientTransform:
    """Give each parameter to the transform of its label: other learning rates, or other optimizers, for other layers.

    Args:
        transforms: Transforms by label.
        param_labels: Pairs of a pattern and a label; the first pattern that matches a parameter gives its label.
        name: Under which the state is kept and metrics are reported.
    """
    labels = tuple(param_labels)
    if not labels:
        raise ValueError("param_labels must have at least one pair; ['*', label] gives a label to all")
    if unknown := {label for _, label in labels} - transforms.keys():
        raise ValueError(f"param_labels: there is no transform {sorted(unknown)[0]!r} (known: {', '.join(transforms)})")
    if unused := transforms.keys() - {label for _, label in labels}:
        raise ValueError(f"transforms: no pattern has the label {sorted(unused)[0]!r}")
    return selection.partition(transforms, labels, name)


def _freeze(mask: str | Sequence[str]) -> GradientTransform:
    """Set the updates of some parameters to zero; stands last. `strategy.frozen` leaves them out altogether.

    Args:
        mask: Patterns of the parameters.
    """
    return selection.freeze(mask)


SELECTIONS: dict[str, Callable[..., GradientTransform]] = {
    "chain": _chain,
    "masked": _masked,
    "partition": _partition,
    "freeze": _freeze,
}
"""By the names of the functions that do the work."""
