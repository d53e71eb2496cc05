"""Batch normalisation among ranks."""

import pytest
import torch

import purestep as ps
from tests.distributed import runs
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()


@pytest.mark.parametrize("splits", [((0, 7), (7, 12)), ((0, 12), (12, 12))], ids=["uneven", "one without samples"])
@pytest.mark.parametrize("engine", ["autograd", "func"])
def test_synchronised_statistics_are_those_of_the_whole_batch(engine, splits):
    whole = runs.normalised(ALONE, "local", ((0, 12),))
    for state in run_ranks(2, runs.normalised, "synchronised", splits, engine):
        # sums over 12 samples in another order, two updates
        assert [name for name, leaf in whole.items() if not torch.allclose(state[name].double(), leaf.double(), atol=1e-12)] == [
            "counters.global_step_count"
        ]


def test_synchronised_statistics_are_captured():
    splits = ((0, 7), (7, 12))
    eager, captured = (run_ranks(2, runs.normalised, "synchronised", splits, "auto", backend)[0] for backend in (None, "aot_eager"))
    assert [name for name in eager if not torch.allclose(eager[name].double(), captured[name].double(), rtol=0, atol=1e-12)] == []


def test_local_statistics_leave_the_same_buffers_on_all_ranks():
    first, other = run_ranks(2, runs.normalised, "local", ((0, 7), (7, 12)))
    assert [name for name in first if not torch.equal(first[name], other[name])] == []
    assert not torch.equal(first["buffers.norm.running_mean"], runs.normalised(ALONE, "local", ((0, 7),))["buffers.norm.running_mean"])


def test_unknown_statistics_are_refused():
    with pytest.raises(ValueError, match="batch_norm must be one of local, synchronised, got 'global'"):
        runs.normalised(ALONE, "global", ((0, 12),))
