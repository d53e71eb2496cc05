"""Sizes in a range that a step computes with: the numbers of each size, or an error; never those of the size that was recorded."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_close
from tests.examples_of_models import batches, run, seeded, training


def outcome(function, sizes=(5, 9, 4, 5)):
    """What one graph gives for tensors of these lengths, and what the function gives; or the error."""
    step = ps.compile(lambda state, x: (state, function(x)), backend="eager", on_recompile="ignore", dynamic={"*": {0: ("n", 2, 64)}})
    data = [torch.linspace(0.5, 2.0, 3 * size, dtype=torch.float64).view(size, 3) for size in sizes]
    return [step({}, x)[1] for x in data], [function(x) for x in data]


COMPUTED = {
    "division": lambda x: x.sum() / x.shape[0],
    "true division of numbers": lambda x: x * (1.0 / x.shape[0]),
    "product of sizes": lambda x: x * x.numel(),
    "size()": lambda x: x * x.size(0) ** 2,
    "full": lambda x: torch.full((), x.shape[0]),
    "arange": lambda x: torch.arange(x.shape[0]).cumsum(0),
    "eye": lambda x: torch.eye(x.shape[0]) @ x.float(),
    "zeros of twice": lambda x: torch.zeros(2 * x.shape[0]).sum() + torch.ones(x.shape[0] + 1).sum(),
    "view": lambda x: x.view(3 * x.shape[0]).flip(0),
    "expand": lambda x: x[:, None].expand(x.shape[0], x.shape[0], 3).sum(0),
    "slice": lambda x: x[: x.shape[0] // 2].sum(),
    "last": lambda x: x[-1],
    "minimum": lambda x: x * min(x.shape[0], 7),
    "parity": lambda x: x if x.shape[0] % 2 == 0 else -x,
    "mean and deviation": lambda x: x.mean(0) + x.std(0),
    "padding": lambda x: F.pad(x, (0, 0, x.shape[0], 1)),
    "concatenation": lambda x: torch.cat([x, x]).shape[0] * x.sum(),
    "outer product": lambda x: (x @ x.T).diagonal(),
    "one hot": lambda x: F.one_hot(torch.zeros(x.shape[0], dtype=torch.int64), 4).sum(),
    "sorting": lambda x: x.sort(0, descending=True)[0][x.shape[0] // 2],
    "rounding": lambda x: x * round(x.shape[0] / 2),
    "floor": lambda x: x * math.floor(x.shape[0] / 2),
    "interpolation": lambda x: F.interpolate(x.T[None], scale_factor=2.0)[0],
    "chunks": lambda x: torch.stack([part.sum() for part in x.chunk(2)]),
    "broadcast weights": lambda x: torch.ones_like(x).cumsum(0) * x,
}
TAKEN = {
    "square root": lambda x: x * math.sqrt(x.shape[0]),
    "array": lambda x: x * float(np.prod(x.shape)),
    "range": lambda x: x * sum(range(x.shape[0])),
    "linspace": lambda x: torch.linspace(0.0, 1.0, x.shape[0]),
    "tensor of a size": lambda x: torch.tensor(x.shape[0]) * x,
    "tensor of sizes": lambda x: torch.tensor([x.shape[0], 1]).sum() * x,
    "item": lambda x: x[x.shape[0] - 1],
    "place in a list": lambda x: x * list(range(100))[x.shape[0]],
    "truth": lambda x: x * bool(x.shape[0] - 5),
    "unbind": lambda x: sum(part.sum() for part in x.unbind(0)),
    "parts": lambda x: torch.stack([part.sum() for part in x.split(2)]),
}
UNKNOWN = {
    "text": lambda x: x * len(f"{x.shape[0]:05d}"),
    "dictionary": lambda x: x * {5: 1.0}.get(x.shape[0], 2.0),
}


@pytest.mark.parametrize("function", COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_from_a_size_is_that_of_each_call(function):
    found, expected = outcome(function)
    assert_trees_close(found, expected, rtol=1e-12, atol=1e-12)  # sums in another order


@pytest.mark.parametrize("function", TAKEN.values(), ids=TAKEN)
def test_a_size_that_is_taken_as_a_number_is_an_error(function):
    with pytest.raises(CaptureError, match=r"size 'n' \(axis 0 of argument .*\) was taken as the number 5.*would serve no other"):
        outcome(function)


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
def test_what_a_size_cannot_do_is_an_error_that_names_the_line(function):
    with pytest.raises(CaptureError, match=r"could not be recorded at .*test_sizes_as_numbers\.py:\d+"):
        outcome(function)


class Weighted(nn.Module):
    """Divides by numbers computed from the size of the batch, in forward and loss."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.norm(x) - x.sum(0) / x.shape[0]) * x.shape[0] ** 0.5


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_gradient_that_depends_on_the_size_is_that_of_each_batch(backend):
    tr, data = training(seeded(Weighted)), [batches(1, size=size, seed=size)[0] for size in (8, 5, 30, 3)]
    step = ps.compile(tr.step, backend=backend, donate=True, on_recompile="error", dynamic={"*": {0: ("n", 2, 64)}})
    # compilers sum in another order
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)
