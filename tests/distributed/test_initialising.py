"""A model that no rank holds whole begins with the same weights in every world."""

import pytest
import torch

import purestep as ps
from tests.distributed import scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()


def test_parts_of_a_model_on_the_meta_device_are_those_of_the_model_made_whole():
    whole, after = scenarios.begun_on_meta(ALONE)
    by_rank = {world_size: run_ranks(world_size, scenarios.begun_on_meta) for world_size in (2, 3)}
    for results in by_rank.values():
        for begun, trained in results:
            assert [name for name, leaf in whole.items() if not torch.equal(begun[name], leaf)] == []
            # two updates, sums of 12 terms in another order
            assert [name for name, leaf in after.items() if not torch.allclose(trained[name], leaf, rtol=0, atol=1e-10)] == []
    assert len(torch.unique(whole["params.0.weight"])) == whole["params.0.weight"].numel()


def test_one_leaf_is_whole_at_a_time():
    for most, held, largest in run_ranks(2, scenarios.leaves_alive_while_beginning):
        assert most == 1
        assert held == 6 * largest // 2


def test_a_module_that_cannot_draw_its_parameters_is_named():
    with torch.device("meta"):
        model = scenarios.Parted()
    training = ps.Training(model, loss=ps.MSELoss(prediction_key="a", target_key="a"), optimizer=ps.adamw(0.1))
    with pytest.raises(ps.errors.DistributedError, match=r"init_in_parts: the module, a Parted, has parameters .* of its own"):
        ps.distributed.init_in_parts(training, ALONE)


def test_the_random_state_is_as_before():
    before = torch.get_rng_state()
    scenarios.begun_on_meta(ALONE)
    assert torch.equal(torch.get_rng_state(), before)
