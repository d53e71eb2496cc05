"""Optimizer state in parts gives the same training in less memory."""

import pytest
import torch

import purestep as ps
from tests.distributed import runs, scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()


@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_optimizer_state_changes_no_parameter_and_no_metric(world_size):
    whole = run_ranks(world_size, scenarios.sharded_all, "nothing")[0]
    for results in run_ranks(world_size, scenarios.sharded_all, "optimizer"):
        for name, (params, metrics, _) in results.items():
            assert [path for path, leaf in params.items() if not torch.equal(leaf, whole[name][0][path])] == [], name
            assert [step.keys() for step in metrics] == [step.keys() for step in whole[name][1]]


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_holds_its_share_of_the_optimizer_state(world_size):
    whole = run_ranks(world_size, scenarios.sharded, "adamw", "nothing")[0][2]
    for _, _, held in run_ranks(world_size, scenarios.sharded, "adamw", "optimizer"):
        assert held <= (1 / world_size + 0.1) * whole


def test_a_sharded_run_goes_on_bitwise_and_in_another_world(tmp_path):
    for whole, resumed in run_ranks(2, runs.stopped_and_resumed, "adamw", str(tmp_path), "optimizer"):
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    three = run_ranks(3, runs.resumed, "adamw", str(tmp_path / "pieces"), "optimizer")
    assert all(torch.equal(state["params.layer.weight"], whole["params.layer.weight"]) for state in three)


def test_an_optimizer_that_needs_whole_matrices_is_refused():
    topology = ps.distributed.Topology(rank=0, world_size=2)
    training = scenarios.wide_training("adamw").replace(optimizer=ps.chain(ps.adamw(0.1), ps.clip_by_global_norm(1.0)))
    with pytest.raises(ps.errors.TransformError, match="clip_by_global_norm needs more than single elements"):
        ps.distributed.data_parallel(training, topology, shard_state="optimizer")
