"""For each term of the table an example, made of samples: so that batches can be cut, reordered and padded sample by sample."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from purestep import losses
from purestep.core import loss, tree
from purestep.data.batch import AtomicBatch

# Each line: name of the class, layout, arguments. Every class of the table has one line or more.
VARIANTS = (
    ("EnergyMSELoss", "energy", {"ignore_nonfinite": True}),
    ("EnergyMSELoss", "energy", {"ignore_nonfinite": True, "per_atom": True}),
    ("EnergyMAELoss", "energy", {}),
    ("EnergyMAELoss", "energy", {"per_atom": False}),
    ("EnergyHuberLoss", "energy", {"delta": 0.3}),
    ("EnergyHuberLoss", "energy", {"delta": 0.3, "per_atom": False}),
    ("ForceMSELoss", "forces", {"ignore_nonfinite": True}),
    ("ForceMSELoss", "padded forces", {"ignore_nonfinite": True}),
    ("ForceMSELoss", "forces", {"ignore_nonfinite": True, "normalize_by_atom_count": False}),
    ("ForceMAELoss", "forces", {}),
    ("ForceMAELoss", "padded forces", {"normalize_by_atom_count": True}),
    ("ForceHuberLoss", "forces", {"delta": 0.5}),
    ("ForceHuberLoss", "padded forces", {"delta": 0.5}),
    ("ForceL2NormLoss", "forces", {}),
    ("ForceL2NormLoss", "padded forces", {}),
    ("ForceL2NormLoss", "forces", {"normalize_by_atom_count": False}),
    ("StressMSELoss", "stress", {"ignore_nonfinite": True}),
    ("StressHuberLoss", "stress", {"delta": 0.5}),
    ("MSELoss", "rows", {"mask_key": "mask", "ignore_nonfinite": True}),
    ("MAELoss", "rows", {"mask_key": "mask", "ignore_nonfinite": True}),
    ("HuberLoss", "rows", {"mask_key": "mask", "ignore_nonfinite": True, "delta": 0.5}),
    ("CrossEntropyLoss", "classes", {"mask_key": "mask"}),
    ("CrossEntropyLoss", "classes", {"mask_key": "mask", "label_smoothing": 0.1}),
    ("CrossEntropyLoss", "image", {"mask_key": "mask", "class_axis": 1}),
    ("CrossEntropyLoss", "probabilities", {"mask_key": "mask", "label_smoothing": 0.1}),
    ("BinaryCrossEntropyLoss", "binary", {"mask_key": "mask"}),
)


class Variant(NamedTuple):
    """A term and the layout of what it is called on."""

    term: loss.LossTerm
    layout: str


TERMS = {
    " ".join([name, layout, *(f"{key}={value}" for key, value in kwargs.items())]): Variant(getattr(losses, name)(**kwargs), layout)
    for name, layout, kwargs in VARIANTS
}
OF_ERRORS = [name for name in TERMS if "CrossEntropy" not in name]
"""Terms that are functions of `prediction - target`."""
WITH_GAPS = [name for name in TERMS if hasattr(TERMS[name].term, "ignore_nonfinite")]
"""Terms that can leave out targets that are not finite."""

NUM_ATOMS = (3, 1, 4, 2)
WIDTH = 5  # of padded forces
NAN = float("nan")

Call = tuple[Tensor, Tensor, Any]


class Sample(NamedTuple):
    """One graph, or one row."""

    prediction: Tensor
    target: Tensor
    num_atoms: int
    real: bool = True


def make_samples(layout: str, seed: int = 0) -> list[Sample]:
    """Four samples."""
    generator = torch.Generator().manual_seed(seed)
    return [Sample(*_pair(layout, count, generator), count) for count in NUM_ATOMS]


def _pair(layout: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shape = {"energy": (1,), "forces": (count, 3), "padded forces": (count, 3), "stress": (3, 3), "rows": (2, 3), "binary": (2, 3)}.get(
        layout
    )
    if layout == "binary":
        return random(*shape), torch.randint(2, shape, generator=generator)
    if shape:
        return random(*shape), random(*shape)
    if layout == "probabilities":
        return random(4, 5), torch.softmax(random(4, 5), -1)
    logits = random(5, 2, 2) if layout == "image" else random(4, 5)
    return logits, torch.randint(5, (2, 2) if layout == "image" else (4,), generator=generator)


def padding_sample(layout: str, fill: float) -> Sample:
    """A sample that is not there: its values would spoil everything that they got into."""
    like = make_samples(layout)[0]
    spoilt = 10**6 if not like.target.is_floating_point() else fill
    return Sample(torch.full_like(like.prediction, -fill), torch.full_like(like.target, spoilt), like.num_atoms, real=False)


def collect(layout: str, samples: list[Sample]) -> Call:
    """A batch of the samples: prediction, target and what else a term may read."""
    counts = torch.tensor([sample.num_atoms for sample in samples])
    real = torch.tensor([sample.real for sample in samples])
    join = {"forces": torch.cat, "padded forces": _pad}.get(layout, torch.stack)
    prediction, target = join([s.prediction for s in samples]), join([s.target for s in samples])
    if layout in ("energy", "forces", "stress"):
        return prediction, target, _atoms(counts, None if real.all() else real)
    if layout == "padded forces":
        return prediction, target, {"num_nodes_per_graph": counts, "graph_mask": real}
    return prediction, target, {"mask": real[:, None].expand(-1, 2 if layout in ("rows", "binary", "image") else 4)}


def _pad(rows: list[Tensor]) -> Tensor:
    return torch.stack([torch.cat([row, row.new_full((WIDTH - len(row), 3), NAN)]) for row in rows])


def _atoms(counts: Tensor, real: Tensor | None) -> AtomicBatch:
    index = torch.repeat_interleave(torch.arange(len(counts)), counts)
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    size = int(counts.sum())
    return AtomicBatch(
        positions=torch.zeros(size, 3, dtype=torch.float64),
        numbers=torch.ones(size, dtype=torch.int64),
        batch=index,
        ptr=ptr,
        atom_mask=None if real is None else real[index],
        graph_mask=real,
    )


def example(name: str, seed: int = 0) -> tuple[loss.LossTerm, Call]:
    """The term, and arguments to call it with."""
    term, layout = TERMS[name]
    return term, collect(layout, make_samples(layout, seed))


def mean(sums: loss.Sums) -> Tensor:
    return loss.divide(sums.numerator, sums.denominator)


def mean_and_grad(term: loss.LossTerm, call: Call) -> tuple[Tensor, Tensor]:
    prediction = call[0].clone().requires_grad_()
    value = mean(term(prediction, *call[1:]))
    return value.detach(), torch.autograd.grad(value, prediction)[0]


def spoil_first_label(layout: str, samples: list[Sample]) -> list[Sample]:
    """The same samples, the first one without a label."""
    return [samples[0]._replace(target=torch.full_like(samples[0].target, NAN)), *samples[1:]]


def assert_close(actual: Any, expected: Any, rtol: float = 1e-12, atol: float = 1e-15) -> None:
    """Equal to a few roundings of float64."""
    pairs = zip(tree.leaves(actual), tree.leaves(expected), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
