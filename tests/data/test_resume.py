"""Stopping in the middle of an epoch and going on gives the log of samples of a run that never stopped, for any number of ranks."""

import itertools

import numpy as np
import pytest
import torch

import purestep as ps
from purestep.data import Joined, Loader, MixedBatches, Prefetched, convert
from tests.data.prefetch_samples import Numbers

# the loss below reads the mask
pytestmark = pytest.mark.filterwarnings("ignore:the last batch of an epoch is filled up")

STOP = 2 * 5 + 3  # batches: in the middle of the third epoch, number 2


class Weight(torch.nn.Module):
    """One number, at which every sample pulls, so that the state depends on the order."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch):
        return {"pull": ((self.w - batch["x"][:, 0]) ** 2 * batch["mask"]).sum() / 4}


TRAINING = ps.Training(Weight(), loss=lambda predictions, batch: predictions["pull"], optimizer=ps.sgd(0.1))


def log_of(loader, num_epochs, stop_at=None, state=None):
    """Sample numbers by batch, and the state at the end."""
    log = []

    def listen(event):
        if event.stage is ps.Stage.AFTER_BATCH:
            log.append((event.batch_count, event.batch["id"][event.batch["mask"]].tolist()))
            return ps.Stop("asked") if event.batch_count == stop_at else None
        return None

    return log, ps.fit(TRAINING, loader, state=state, num_epochs=num_epochs, listeners=[listen]).state


def loader_of(rank, world, kind="shuffled"):
    if kind == "mixed":
        joined = Joined(Numbers(25), Numbers(15))
        return Loader(joined, MixedBatches(joined.sizes, 8 // world, weights=(1.0, 2.0), seed=5), rank=rank, world=world)
    return Loader(Numbers(37), 8 // world, seed=5, rank=rank, world=world)


@pytest.mark.parametrize("kind", ["shuffled", "mixed"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_run_stopped_in_the_middle_of_epoch_2_sees_the_samples_of_one_that_was_not(world, kind, tmp_path):
    for rank in range(world):
        whole, end = log_of(loader_of(rank, world, kind), 4)
        first, state = log_of(loader_of(rank, world, kind), 4, stop_at=STOP)
        assert int(state.counters.epoch_count) == 2 and int(state.counters.epoch_step_count) == 3
        ps.save(tmp_path / f"{rank}", state)
        second, resumed = log_of(loader_of(rank, world, kind), 4, state=ps.load(tmp_path / f"{rank}", like=state))
        assert first + second == whole and len(whole) == 20
        assert torch.equal(resumed.params["w"], end.params["w"])


def test_all_ranks_together_see_what_one_process_sees():
    logs = [[log_of(loader_of(rank, world), 3)[0] for rank in range(world)] for world in (1, 2, 4)]
    by_step = [[list(itertools.chain(*(ids for _, ids in batches))) for batches in zip(*ranks, strict=True)] for ranks in logs]
    assert by_step[0] == by_step[1] == by_step[2]


def test_prefetching_does_not_disturb_resuming():
    whole, end = log_of(loader_of(0, 1), 4)
    with Prefetched(loader_of(0, 1), 3) as ahead:
        first, state = log_of(ahead, 4, stop_at=STOP)
        second, resumed = log_of(ahead, 4, state=state)
    assert first + second == whole and torch.equal(resumed.params["w"], end.params["w"])


def test_a_converted_set_is_resumed_alike(tmp_path):
    water = {"numbers": [8, 1, 1], "positions": np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])}
    store = convert([{**water, "number": float(n)} for n in range(21)], tmp_path / "set.zarr", levels={"number": "frame"}).store

    def collate(frames, mask):
        numbers = torch.tensor([float(frame["number"]) for frame in frames])
        return {"id": numbers, "x": numbers[:, None], "mask": torch.from_numpy(mask)}

    whole, end = log_of(Loader(store, 4, seed=1, collate=collate), 3)
    first, state = log_of(Loader(store, 4, seed=1, collate=collate), 3, stop_at=15)
    second, resumed = log_of(Loader(store, 4, seed=1, collate=collate), 3, state=state)
    assert first + second == whole and torch.equal(resumed.params["w"], end.params["w"])
