"""A script for torchrun: trains, saves, and goes on from the newest checkpoint; in its first life rank 1 may be killed."""

import functools
import hashlib
import os
import signal
import sys

import torch
from torch import nn

import purestep as ps
from purestep.core import tree


class Numbers:
    def __len__(self):
        return 21

    def __getitem__(self, index):
        x = torch.tensor([float(index) / 10], dtype=torch.float64)
        return {"x": x, "y": x.sin()}


def main(root: str, kill_after: int) -> None:
    torch.set_num_threads(1)
    topology = ps.distributed.init(device="cpu", timeout_seconds=30)
    torch.manual_seed(0)
    training = ps.distributed.data_parallel(
        ps.Training(
            nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)).double(),
            loss=ps.MSELoss(prediction_key="y", target_key="y", mask_key="mask"),
            optimizer=ps.adamw(0.01),
            forward=lambda model, batch: {"y": model(batch["x"])},
        ),
        topology,
    )
    state = training.init(seed=3)
    if topology.ranks.tell(str(os.path.isdir(f"{root}/latest"))) == "True":
        state = ps.distributed.restore(functools.partial(ps.load, root), state, topology)

    def die(event: ps.Event) -> None:
        first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if first_life and topology.rank == 1 and event.stage is ps.Stage.AFTER_BATCH and event.batch_count == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    die.on_every_rank = True
    loader = ps.distributed.shard(ps.Loader(Numbers(), 6, seed=1), topology)
    with ps.distributed.SharedCheckpoints(lambda: ps.Checkpointer(root), topology, every_n_steps=2) as checkpoints:
        result = ps.fit(training, loader, state=state, num_epochs=3, listeners=[die, checkpoints])
    if topology.rank == 0:
        digest = hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(result.state))).hexdigest()
        print(f"started at {int(state.counters.batch_count)}, ended with {digest}", flush=True)
    ps.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
