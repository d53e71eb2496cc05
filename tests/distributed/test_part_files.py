"""Every rank writes and reads its own part of a checkpoint; whether it counts is agreed."""

import os

import pytest
import torch
from safetensors.torch import load_file

import purestep as ps
from purestep.checkpoint import export
from tests.distributed import runs, scenarios
from tests.distributed.processes import outcomes, run_ranks

pytestmark = pytest.mark.distributed
ALONE = ps.distributed.Topology()
CLOSE = {"rtol": 0, "atol": 1e-10}  # sums of at most 6 terms in another order, a few updates


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The root of a run of two ranks, two epochs in pieces; and what each rank found."""
    folder = tmp_path_factory.mktemp("parts")
    return f"{folder}/pieces", run_ranks(2, runs.once_and_again, str(folder))


def test_a_run_in_parts_goes_on_bitwise(written):
    for whole, resumed, _ in written[1]:
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_every_rank_writes_what_only_it_holds(written):
    sizes = {name: os.path.getsize(f"{written[0]}/latest/{name}") for name in os.listdir(f"{written[0]}/latest") if "-of-00002" in name}
    assert sorted(sizes) == [f"{kind}-r0000{rank}-of-00002.safetensors" for kind in ("model", "state") for rank in (0, 1)]


def test_any_world_goes_on_from_what_another_wrote(written, tmp_path):
    root = tmp_path / "on"
    for part in run_ranks(3, runs.continued_elsewhere, written[0], str(root)):
        for name, leaf in part.items():
            assert torch.equal(leaf, written[1][0][1][name]), name
    like = scenarios.staged_training("window").init()
    alone = ps.load(root, like, allow_extra="*sum_over_ranks*")
    saved = written[1][0][1]
    assert [name for name, leaf in scenarios.plain(alone).items() if not torch.equal(leaf, saved[name])] == []


def test_weights_are_exported_from_parts(written, tmp_path):
    export(written[0], tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    saved = {name.removeprefix("params."): leaf for name, leaf in written[1][0][1].items() if name.startswith("params.")}
    assert [name for name, leaf in saved.items() if not torch.equal(found[name], leaf)] == []


def test_stage_3_trains_and_validates_as_one_process(written, tmp_path):
    state, validated = runs.shares_in_parts(ALONE, str(tmp_path), 2)
    for whole, *_ in written[1]:
        assert [n for n, leaf in state.items() if n.startswith("params") and not torch.allclose(leaf, whole[n], **CLOSE)] == []
    assert validated == pytest.approx(written[1][0][2], rel=1e-9)


def first_lines(root, scenario):
    return [str(result).splitlines()[0] for result in outcomes(2, scenario, str(root), timeout_seconds=40, wait_seconds=10)]


def newest_epoch(root):
    """Of the newest checkpoint; nothing half written may lie beside it."""
    assert [name for name in os.listdir(root) if name.startswith(".tmp")] == []
    return int(ps.load(root, scenarios.staged_training("window").init(), allow_extra="*sum_over_ranks*").counters.epoch_count)


def test_a_full_disk_of_one_rank_fails_the_save_on_all_and_leaves_the_previous_checkpoint(tmp_path):
    first, other = first_lines(tmp_path, runs.rank_one_cannot_write)
    assert first.startswith("DistributedError: rank 1 failed, so rank 0 stops too: OSError: no space left on device")
    assert other.startswith("OSError: no space left on device")
    assert newest_epoch(tmp_path) == 1


def test_a_rank_killed_while_it_writes_fails_the_save_and_leaves_the_previous_checkpoint(tmp_path):
    first, _ = first_lines(tmp_path, runs.rank_one_dies_while_writing)
    assert "waited in vain" in first
    assert newest_epoch(tmp_path) == 1


def test_a_writer_that_cannot_seal_parts_is_refused_at_once():
    with pytest.raises(TypeError, match="FullDisk has none"):
        ps.distributed.SharedCheckpoints(runs.FullDisk, ALONE, write_part=runs.shards.write_rank)
