import math

import torch

from purestep.reporting import read_scalars


def test_read_scalars_keeps_order_and_values_of_every_dtype():
    metrics = {
        "double": torch.tensor(0.1, dtype=torch.float64),
        "single": torch.tensor([0.25]),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "count": torch.tensor(3),
        "flag": torch.tensor(True),
        "number": 7,
    }
    read = read_scalars(metrics)
    assert list(read.items()) == [("double", 0.1), ("single", 0.25), ("half", 0.5), ("count", 3.0), ("flag", 1.0), ("number", 7.0)]
    assert {type(value) for value in read.values()} == {float}


def test_read_scalars_leaves_out_what_is_no_scalar():
    metrics = {"vector": torch.ones(2), "text": "no", "complex": torch.ones((), dtype=torch.complex64), "empty": torch.ones(0)}
    assert read_scalars(metrics) == {}


def test_read_scalars_passes_what_is_not_finite():
    read = read_scalars({"nan": torch.tensor(math.nan), "inf": torch.tensor(-math.inf)})
    assert math.isnan(read["nan"])
    assert read["inf"] == -math.inf


def test_read_scalars_needs_no_gradient():
    assert read_scalars({"loss": torch.tensor(2.0, requires_grad=True)}) == {"loss": 2.0}
