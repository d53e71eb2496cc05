"""Which leaves a transform sees: masks and labels by path pattern, tree prefix or function; `masked`, `partition`, `freeze`.

A selection is resolved once, at `init`, and kept as a static part of the state. The inner transform sees a flat dict
`{path: leaf}` of its own leaves only, so the others have no state. True in a mask means "applies here".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optree
import torch
from torch import Tensor

from ..errors import PatternError, TransformError
from . import tree
from .transform import Gated, GradientTransform, silence, stateless
from .tree import Tree

Mask = str | Sequence[str] | Tree | Callable[[Tree], Tree]


@tree.node(static=("paths", "labels"))
class Selected:
    """State of the parts of a selection: `{label: inner state}`, and the label of each leaf (None: no part)."""

    inner: dict[str, Any]
    paths: tuple[str, ...]
    labels: tuple[str | None, ...]


def resolve_mask(mask: Mask, params: Tree) -> tuple[bool, ...]:
    """One bool per leaf of `params`, in the order of `tree.leaves`.

    Args:
        mask: A path pattern or several (True where any matches); or a tree of bools with the structure of `params` or a prefix of
            it; or a function of the parameters that returns one of these.

    Raises:
        PatternError: If a pattern matches no leaf.
    """
    if callable(mask):
        mask = mask(params)
    if isinstance(mask, str):
        mask = (mask,)
    if isinstance(mask, list | tuple) and mask and all(isinstance(pattern, str) for pattern in mask):
        return tuple(hit is not None for hit in tree.first_matches(mask, tree.paths(params)))
    return tuple(bool(value) for value in _broadcast_prefix(mask, params, "mask"))


def resolve_labels(param_labels: Any, params: Tree) -> tuple[str, ...]:
    """One label per leaf of `params`, in the order of `tree.leaves`.

    Args:
        param_labels: A mapping `{pattern: label}` (or pairs), first match wins; or a tree of labels with the structure of `params`
            or a prefix of it (a mapping with just the keys of `params` is read so); or a function of the parameters that returns
            one of these.

    Raises:
        PatternError: If a pattern matches nothing, or a leaf is covered by no pattern.
    """
    if callable(param_labels):
        param_labels = param_labels(params)
    if isinstance(param_labels, Mapping) and isinstance(params, Mapping) and set(param_labels) != set(params):
        param_labels = tuple(param_labels.items())
    if _is_pairs(param_labels):
        names = tree.paths(params)
        patterns, labels = zip(*param_labels, strict=True)
        hits = tree.first_matches(patterns, names, "label pattern")
        if uncovered := [name for name, hit in zip(names, hits, strict=True) if hit is None]:
            raise PatternError(
                f"{len(uncovered)} of {len(names)} leaves have no label, among them {uncovered[0]!r}; add a last pattern '*' for the rest"
            )
        return tuple(labels[hit] for hit in hits if hit is not None)
    return tuple(_broadcast_prefix(param_labels, params, "param_labels"))


def _is_pairs(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str) for pair in value)
    )


def _broadcast_prefix(prefix: Tree, params: Tree, what: str) -> list[Any]:
    try:
        return optree.broadcast_prefix(prefix, params, namespace=tree.NAMESPACE)
    except ValueError as error:
        raise PatternError(f"{what}: not a prefix of the parameters ({tree.paths(params)[:3]} ...): {error}") from error


def _pick(updates: Tree | None, paths: tuple[str, ...], labels: tuple[str | None, ...], label: str) -> dict[str, Tensor] | None:
    if updates is None:
        return None
    return {path: leaf for path, owner, leaf in zip(paths, labels, tree.leaves(updates), strict=True) if owner == label}


def _select(
    transforms: Mapping[str, GradientTransform], label_of: Callable[[Tree], tuple[str | None, ...]], name: str
) -> GradientTransform:
    """The one mechanism behind `masked` and `partition`."""
    needs = frozenset().union(*(part.needs for part in transforms.values()))

    def init(params: Tree) -> Selected:
        paths, labels = tuple(tree.paths(params)), label_of(params)
        inner = {label: part.init(_pick(params, paths, labels, label)) for label, part in transforms.items()}
        return Selected(inner, paths, labels)

    def update(updates: Tree, state: Selected, params: Tree = None, **extra: Any) -> tuple[Any, Selected]:
        leaves, spec = tree.flatten(updates)
        out = dict(zip(state.paths, leaves, strict=True))
        inner, verdicts = {}, {}
        for label, part in transforms.items():
            own = _pick(updates, state.paths, state.labels, label)
            new, inner[label] = part.update(own, state.inner[label], _pick(params, state.paths, state.labels, label), **extra)
            if isinstance(new, Gated):
                new, *verdicts[label] = new
            out |= new
        result = tree.unflatten(spec, [out[path] for path in state.paths])
        if len(verdicts) > 1:
            raise TransformError(
                f"{name}: parts {sorted(verdicts)} each hold a gate; a verdict is about the whole update, put one gate before"
            )
        for label, (apply, reject) in verdicts.items():
            inner = {key: new if key == label else tree.where(apply, new, state.inner[key]) for key, new in inner.items()}
            result = Gated(silence(result, apply), apply, reject)
        return result, Selected(inner, state.paths, state.labels)

    def scale_loss(loss: Tensor, state: Selected) -> Tensor:
        for label, part in transforms.items():
            loss = loss if part.scale_loss is None else part.scale_loss(loss, state.inner[label])
        return loss

    scales = any(part.scale_loss is not None for part in transforms.values())
    return GradientTransform(init, update, name, needs, scale_loss if scales else None)


def masked(inner: GradientTransform, mask: Mask) -> GradientTransform:
    """Apply `inner` where the mask is True; other leaves pass through untouched and have no state.

    Raises:
        PatternError: At `init`, if a pattern matches nothing or the mask does not fit the parameters.
    """
    label = inner.name
    return _select(
        {label: inner}, lambda params: tuple(label if hit else None for hit in resolve_mask(mask, params)), f"masked_{inner.name}"
    )


def partition(transforms: Mapping[str, GradientTransform], param_labels: Any, name: str = "partition") -> GradientTransform:
    """Give each leaf to the transform of its label.

    Args:
        transforms: `{label: transform}`.
        param_labels: See `resolve_labels`.
        name: Of the whole, in states and metrics.

    Raises:
        PatternError: At `init`, if a label has no transform, a transform no leaf, or a leaf no label.
    """

    def label_of(params: Tree) -> tuple[str | None, ...]:
        labels = resolve_labels(param_labels, params)
        if unknown := set(labels) - set(transforms):
            path = next(path for path, label in zip(tree.paths(params), labels, strict=True) if label in unknown)
            raise PatternError(f"{name}: leaf {path!r} has label {sorted(unknown)[0]!r}, but the transforms are {sorted(transforms)}")
        if unused := set(transforms) - set(labels):
            raise PatternError(f"{name}: no leaf has label {sorted(unused)[0]!r}; drop the transform or mend the labels")
        return labels

    return _select(transforms, label_of, name)


def freeze(mask: Mask) -> GradientTransform:
    """Set updates to zero where the mask is True (frozen), as in optax; the one mask where True means "does not apply".

    Stands last in a chain, so that weight decay and momentum do not reach the leaf either.
    """
    zero = stateless(lambda updates, params: tree.map(lambda u: torch.full_like(u, -0.0), updates), "freeze")
    return masked(zero, mask)
