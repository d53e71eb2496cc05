"""The padded form: there and back, zeros for what is no atom, and a graph that does not fit is not overlooked."""

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import purestep as ps
from purestep.data import Padding, collate, from_padded, padded_mask, prepare, to_padded


@pytest.fixture(params=[None, Padding(9, 40, 300)], ids=["plain", "padded"])
def batch(frames, request):
    return collate([prepare(frame, 3.0, dtype=np.float64) for frame in frames], pad_to=request.param)


@pytest.mark.parametrize("key", ["forces", "numbers", "positions"])
def test_the_way_there_and_back_changes_nothing_but_padding(batch, key):
    padded = to_padded(batch[key], batch, 8)
    assert padded.shape == (batch.num_graphs, 8, *batch[key].shape[1:]) and padded.dtype == batch[key].dtype
    assert torch.equal(from_padded(padded, batch)[batch.atom_mask], batch[key][batch.atom_mask])
    assert not from_padded(padded, batch)[~batch.atom_mask].any()


def test_each_graph_has_its_row(batch, frames):
    padded, mask = to_padded(batch.positions, batch, 7), padded_mask(batch, 7)
    assert np.array_equal(padded[2, :5], frames[2]["positions"]) and not padded[2, 5:].any()
    assert torch.equal(mask.sum(dim=1), batch.num_nodes_per_graph) and not padded[~mask].any()


def test_losses_of_padded_forces_are_those_of_concatenated_ones(batch):
    loss = ps.ForceMSELoss()
    predicted = torch.zeros_like(batch.forces)
    flat = loss(predicted, batch.forces, batch)
    padded = loss(to_padded(predicted, batch, 7), to_padded(batch.forces, batch, 7), batch)
    torch.testing.assert_close(padded.numerator / padded.denominator, flat.numerator / flat.denominator, rtol=1e-14, atol=0)  # other order


def test_a_graph_that_does_not_fit_is_not_a_number(batch):
    padded = to_padded(batch.forces, batch, 5)
    assert padded[4].isnan().all() and not padded[:4].isnan().any()
    assert from_padded(padded, batch).isnan().any(dim=1).nonzero().flatten().tolist() == list(range(11, 18))
    assert to_padded(batch.numbers, batch, 5)[4].tolist() == [-1] * 5


def test_a_captured_graph_serves_another_batch_of_the_same_shape(frames):
    one, other = (collate([prepare(frames[n], 3.0) for n in order], pad_to=Padding(4, 16, 120)) for order in ((0, 2), (2, 3, 1)))

    def there_and_back(batch):
        return from_padded(to_padded(batch.forces, batch, 6), batch)

    captured = make_fx(there_and_back)(one)
    assert torch.equal(captured(other), there_and_back(other)) and there_and_back(other).any()
