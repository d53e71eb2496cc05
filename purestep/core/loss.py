"""What a loss is: numerators and denominators by term, combined over cuts of a batch before the one division.

A term is a frozen dataclass, callable on `(prediction, target, batch)`, that returns `Sums`. Terms compose with `+` and `*`;
`losses/` holds the terms themselves.
"""

import abc
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import LossError
from . import tree

LossWeight = Callable[[Tensor, Tensor], Tensor]
"""A weight schedule: `weight(step_count, epoch_count) -> 0-d tensor`, in the graph."""


class Sums(NamedTuple):
    """A term over some samples: a sum and what it is to be divided by."""

    numerator: Tensor
    """0-d, float32 or wider."""
    denominator: Tensor
    """0-d, same dtype: a count or sum of weights that does not depend on the parameters. 0: nothing to learn from."""
    per_sample: Tensor | None = None
    """Mean of each sample, shape (samples,); NaN where a sample has no label."""


def merge_sums(parts: Sequence[Sums]) -> Sums:
    """Sums over several cuts of the samples, in the order given."""
    samples = [part.per_sample for part in parts]
    joined = torch.cat(samples) if all(x is not None for x in samples) else None  # type: ignore[arg-type]
    return Sums(sum_of(part.numerator for part in parts), sum_of(part.denominator for part in parts), joined)


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Add from left to right, so that the same cut gives the same bits again."""
    first, *rest = tensors
    for other in rest:
        first = first + other
    return first


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; exactly 0, without a gradient, where the denominator is 0."""
    empty = denominator == 0
    return torch.where(empty, torch.zeros_like(numerator), numerator / torch.where(empty, torch.ones_like(denominator), denominator))


class Composable(abc.ABC):
    """What `+` and `*` work on: terms and their sums."""

    @abc.abstractmethod
    def weighted(self) -> tuple["Weighted", ...]:
        """The terms with their weights."""

    def __mul__(self, weight: float | LossWeight) -> "ComposedLoss":
        return ComposedLoss(tuple(term.scaled(weight) for term in self.weighted()), normalize_weights=self._normalize())

    __rmul__ = __mul__

    def __add__(self, other: Any) -> "ComposedLoss":
        if other == 0 and not isinstance(other, Composable):  # sum() begins with 0
            return ComposedLoss(self.weighted(), normalize_weights=self._normalize())
        if not isinstance(other, Composable):
            return NotImplemented
        choices = {x.normalize_weights for x in (self, other) if isinstance(x, ComposedLoss)}
        if len(choices) > 1:
            raise LossError("a loss with normalize_weights=True and one with False were added; choose one")
        return ComposedLoss((*self.weighted(), *other.weighted()), normalize_weights=choices.pop() if choices else True)

    __radd__ = __add__

    def _normalize(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossTerm(Composable):
    """Abstract: one term of a loss.

    A subclass is a frozen dataclass with defaults for the two keys, and a `__call__(prediction, target, batch) -> Sums`.
    """

    prediction_key: str
    """Under which name `forward` returns the prediction."""
    target_key: str
    """Under which name the batch holds the target."""
    name: str | None = None
    """In metrics; the class name by default."""

    default_name: ClassVar[str | None] = None

    @abc.abstractmethod
    def __call__(self, prediction: Tensor, target: Tensor, batch: Any) -> Sums:
        """Sum and count of the term over the batch."""

    def read_and_sum(self, predictions: Any, targets: Mapping[str, Any], batch: Any, where: str) -> Sums:
        """Look up prediction and target by key and call the term.

        Raises:
            LossError: If one is missing or no tensor, naming `where` and what is there.
        """
        if isinstance(predictions, Tensor):
            raise LossError(f"{where}: forward returned a Tensor; return a mapping such as {{{self.prediction_key!r}: ...}}")
        prediction = lookup(predictions, self.prediction_key, where, "prediction")
        target = lookup(targets, self.target_key, where, "target")
        if not isinstance(target, Tensor) and hasattr(target, "__array__"):
            raise LossError(f"{where}: target {self.target_key!r} is a {type(target).__name__}; make it a tensor: torch.from_numpy(...)")
        return self(prediction, target, batch)

    @property
    def label(self) -> str:
        """Name in metrics."""
        return self.name or type(self).default_name or type(self).__name__

    def weighted(self) -> tuple["Weighted", ...]:
        """The term alone, with weight 1."""
        return (Weighted(self, 1.0),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionTerm(LossTerm):
    """A term from a function `fn(prediction, target, batch) -> Sums | 0-d mean`, a mean over the samples of the batch.

    Example:
        >>> ps.FunctionTerm(lambda p, t, batch: (p - t).abs().mean(), prediction_key="y", target_key="y", name="error").label
        'error'
    """

    fn: Callable[[Any, Any, Any], Any] = dataclasses.field(kw_only=False)

    def __call__(self, prediction: Any, target: Any, batch: Any) -> Sums:
        """Sum and count of the term over the batch."""
        return as_sums(self.fn(prediction, target, batch), num_samples(batch))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeTerm(LossTerm):
    """A term from a function of all predictions and the batch, `fn(predictions, batch) -> Sums | 0-d mean`."""

    fn: Callable[[Any, Any], Any]
    prediction_key: str = ""
    target_key: str = ""

    def __call__(self, prediction: Any, target: Any, batch: Any) -> Sums:
        """Sum and count of the term; `prediction` is all that `forward` returned."""
        return as_sums(self.fn(prediction, batch), num_samples(batch))

    def read_and_sum(self, predictions: Any, targets: Any, batch: Any, where: str) -> Sums:
        """Call the function; it reads what it needs by itself."""
        return self(predictions, None, batch)


def as_sums(value: Any, count: int = 1) -> Sums:
    """`Sums` as they are; a 0-d mean becomes a sum over `count`.

    Raises:
        LossError: If it is neither.
    """
    if isinstance(value, tuple):
        return Sums(*value)
    if not isinstance(value, Tensor):
        raise LossError(f"a loss function returns a 0-d tensor or Sums, got {type(value).__name__}")
    return Sums(value * count, torch.full_like(value, count)) if count != 1 else Sums(value, torch.ones_like(value))


def sample_mask(batch: Any, size: int) -> Tensor | None:
    """Which of `size` samples count, `(size,)`, bool: the field `mask` of a dict batch, where a `Loader` marks samples that only fill up.

    None if the batch has no such field of this form. Terms and metrics leave those samples out by themselves.
    """
    mask = batch.get("mask") if isinstance(batch, Mapping) else None
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and tuple(mask.shape) == (size,)
    return mask if fits else None


def warn_of_filling(loss: "ComposedLoss", batches: Any) -> None:
    """Tell of a loss function that cannot know of the samples with which a loader fills up the end of an epoch."""
    functions = [part.term.label for part in loss.weighted() if isinstance(part.term, FunctionTerm | WholeTerm)]
    if functions and getattr(batches, "fills_up", False):
        warnings.warn(
            f"the last batch of an epoch is filled up with samples that do not count, which the loss function {', '.join(functions)} "
            "cannot know unless it reads batch['mask'] (then ignore this warning); give the Loader last='drop' or last='keep', or use a "
            "term such as ps.MSELoss, which leaves them out",
            stacklevel=4,
        )


def num_samples(batch: Any) -> int:
    """Samples of a batch: its `num_graphs`, or the length of its first tensor; 1 if it has none."""
    if isinstance(count := getattr(batch, "num_graphs", None), int):
        return count
    first = next((leaf for leaf in tree.leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), None)
    return 1 if first is None or len(first) == 0 else len(first)


class Weighted(NamedTuple):
    """A term and its weight."""

    term: LossTerm
    weight: float | LossWeight

    def scaled(self, factor: float | LossWeight) -> "Weighted":
        """The same term, its weight multiplied.

        Raises:
            LossError: If the factor is not a finite number or a schedule, or schedule and weight would both vary.
        """
        if isinstance(factor, Composable):
            raise LossError(f"{self.term.label}: two losses cannot be multiplied; add them")
        if callable(factor):
            if self.weight != 1.0:
                raise LossError(
                    f"{self.term.label} already has the weight {self.weight!r}; a schedule times a weighted loss is ambiguous, "
                    "give each term its own"
                )
            return Weighted(self.term, factor)
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise LossError(f"{self.term.label}: a weight is a number or a schedule, got {factor!r}")
        if not abs(factor) < float("inf"):
            raise LossError(f"{self.term.label}: a weight must be finite, got {factor}")
        if callable(self.weight):
            raise LossError(f"{self.term.label} has a schedule as its weight; put the factor {factor} into the schedule")
        return Weighted(self.term, self.weight * factor)


@dataclasses.dataclass(frozen=True, init=False)
class ComposedLoss(Composable):
    """A weighted sum of terms.

    Args:
        components: Terms, sums of terms, or terms with weights as `+` and `*` make them.
        weights: Factors of the components, numbers or schedules; 1 each by default.
        normalize_weights: Divide all weights by their sum, so that `E + 10 * F` weighs them 1/11 and 10/11 and the total is a mean of
            the terms; set it to False for the plain sum.

    Raises:
        LossError: If there are no components, or not as many weights.

    Example:
        >>> ps.ComposedLoss([ps.EnergyMSELoss(), ps.ForceMSELoss()], weights=[1.0, 10.0], normalize_weights=False).names
        ('EnergyMSELoss', 'ForceMSELoss')
    """

    terms: tuple[Weighted, ...]
    normalize_weights: bool

    def __init__(
        self,
        components: "Sequence[Composable | Weighted]",
        *,
        weights: "Sequence[float | LossWeight] | None" = None,
        normalize_weights: bool = True,
    ):
        if not components:
            raise LossError("a loss needs at least one term")
        if weights is not None and len(weights) != len(components):
            raise LossError(f"ComposedLoss: {len(components)} components and {len(weights)} weights; give one weight for each component")
        parts = [(part,) if isinstance(part, Weighted) else part.weighted() for part in components]
        if weights is not None:
            parts = [tuple(term.scaled(weight) for term in part) for part, weight in zip(parts, weights, strict=True)]
        terms = tuple(term for part in parts for term in part)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "normalize_weights", normalize_weights)

    def check(self) -> None:
        """Refuse constant weights that cannot be normalised; a loss under construction may pass through such.

        Raises:
            LossError: If they sum to 0 or less.
        """
        numbers = [term.weight for term in self.terms if not callable(term.weight)]
        if self.normalize_weights and len(numbers) == len(self.terms) and not sum(numbers) > 0:
            advice = "give one a positive weight, or normalize_weights=False"
            raise LossError(f"the weights {numbers} sum to {sum(numbers)}, which cannot be normalised; {advice}")

    def weighted(self) -> tuple[Weighted, ...]:
        """The terms with their weights."""
        return self.terms

    def _normalize(self) -> bool:
        return self.normalize_weights

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms in metrics; duplicates are numbered `_0`, `_1`."""
        labels = [term.term.label for term in self.terms]
        return tuple(label if labels.count(label) == 1 else f"{label}_{labels[:i].count(label)}" for i, label in enumerate(labels))

    @property
    def target_keys(self) -> tuple[str, ...]:
        """Names of all targets that the terms read."""
        return tuple(dict.fromkeys(term.term.target_key for term in self.terms if term.term.target_key))

    def sums(self, predictions: Mapping[str, Any], targets: Mapping[str, Any], batch: Any) -> dict[str, Sums]:
        """Numerator and denominator of each term over the batch.

        Raises:
            LossError: If a prediction or a target is missing; the present ones are listed.
        """
        found = {}
        for name, (term, _) in zip(self.names, self.terms, strict=True):
            found[name] = term.read_and_sum(predictions, targets, batch, where=f"loss term {name}")
        return found

    def weights(self, step_count: Tensor, epoch_count: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Effective and raw weight of each term, 0-d float64, at these counts."""
        raw = {}
        for name, (_, weight) in zip(self.names, self.terms, strict=True):
            value = weight(step_count, epoch_count) if callable(weight) else torch.full_like(step_count, weight, dtype=torch.float64)
            raw[name] = value.to(torch.float64)
        total = sum_of(raw.values())
        # a schedule may begin at 0: a lone term then weighs 0
        return ({name: divide(value, total) for name, value in raw.items()} if self.normalize_weights else raw), raw


def lookup(values: Any, key: str, where: str, what: str) -> Any:
    """Read `key` of a mapping, or the attribute of that name.

    Raises:
        LossError: If it is not there; what is there is listed.
    """
    if isinstance(values, Mapping):
        if key in values:
            return values[key]
        there = sorted(map(str, values))
    else:
        if (value := getattr(values, key, None)) is not None:
            return value
        there = [name for name in getattr(values, "__dataclass_fields__", ()) if getattr(values, name) is not None]
    raise LossError(f"{where}: no {what} {key!r}; there are {there}")


def as_loss(loss: Any) -> ComposedLoss:
    """A loss to train with, from a term, a composition, or a function `loss(predictions, batch) -> 0-d mean | Sums`.

    Raises:
        LossError: If it is none of these, or its weights cannot be normalised.
    """
    if not isinstance(loss, Composable) and not callable(loss):
        raise LossError(f"loss: expected a loss term, a sum of terms or a function (predictions, batch), got {type(loss).__name__}")
    home = getattr(type(loss) if isinstance(loss, torch.nn.Module) else loss, "__module__", None) or ""
    if home.startswith("torch.nn."):
        raise LossError(
            f"loss: {getattr(loss, '__name__', type(loss).__name__)} of torch takes a prediction and a target; write a term such as "
            "ps.MSELoss(prediction_key='y', target_key='y'), or lambda predictions, batch: fn(predictions['y'], batch['y'])"
        )
    term = loss if isinstance(loss, Composable) else WholeTerm(fn=loss, name="loss")
    composed = term if isinstance(term, ComposedLoss) else ComposedLoss([term])
    composed.check()
    return composed


def read_targets(loss: ComposedLoss, predictions: Any, batch: Any, *, target_keys: Sequence[str]) -> dict[str, Any]:
    """The default assembler of targets: read them from the batch."""
    return {key: lookup(batch, key, "targets", "field of the batch") for key in target_keys}


@tree.node
class LossOutput:
    """A loss over a batch: the total, and all that it was made of."""

    total: Tensor
    """0-d: sum of weight times numerator over denominator, and of the penalties."""
    sums: dict[str, Sums]
    """By term."""
    weights: dict[str, Tensor]
    """Effective weight by term, 0-d float64."""
    raw_weights: dict[str, Tensor]
    """Before normalisation."""
    penalties: dict[str, Tensor]
    """Terms that do not depend on the batch, added by hooks; 0-d."""

    @property
    def components(self) -> dict[str, Tensor]:
        """Unweighted mean by term, 0-d."""
        return {name: divide(part.numerator, part.denominator) for name, part in self.sums.items()}

    @property
    def per_sample(self) -> dict[str, Tensor | None]:
        """Mean of each sample by term, where the term gives it."""
        return {name: part.per_sample for name, part in self.sums.items()}

    def with_penalty(self, name: str, value: Tensor) -> "LossOutput":
        """Add a term that does not depend on the batch (weight decay towards a point, elastic weight consolidation)."""
        if name in self.penalties:
            raise LossError(f"penalty {name!r} was added already; give this one another name")
        return dataclasses.replace(self, total=self.total + value, penalties={**self.penalties, name: value})


def total_loss(sums: Mapping[str, Sums], weights: Mapping[str, Tensor]) -> Tensor:
    """Sum over terms of weight times numerator over denominator, 0-d."""
    return sum_of(weights[name].to(part.numerator.dtype) * divide(part.numerator, part.denominator) for name, part in sums.items())
