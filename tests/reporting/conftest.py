import pytest
import torch
from torch import nn

import purestep as ps
from purestep.validation import Validation


@pytest.fixture
def training():
    torch.manual_seed(0)
    optimizer = ps.chain(ps.clip_by_global_norm(1.0), ps.adam(ps.schedules.cosine_decay(0.1, 100)))
    return ps.Training(
        nn.Linear(3, 1, dtype=torch.float64),
        loss=ps.MSELoss(prediction_key="y", target_key="y"),
        optimizer=optimizer,
        forward=lambda model, batch: {"y": model(batch["x"])},
    )


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(8, 3, generator=generator, dtype=torch.float64) for _ in range(10)]
    return [{"x": x, "y": x.sum(1, keepdim=True)} for x in draws]


@pytest.fixture
def validation(batches):
    return Validation(batches[:2], every_n_epochs=1)
