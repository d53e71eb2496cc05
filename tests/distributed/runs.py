"""Runs with checkpoints, on every rank; each returns what a test compares."""

import functools
import os
import signal
import warnings

import torch
from torch import nn

import purestep as ps
from purestep.checkpoint import shards
from purestep.core import tree
from tests.distributed import scenarios
from tests.distributed.faults import Rows

CHAINS = {
    "adamw": lambda: ps.adamw(0.05),
    "window": lambda: ps.chain(ps.skip_nonfinite(), ps.accumulate(3, last="carry"), ps.adamw(0.05)),
}


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layer = nn.Linear(1, 4, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(4, dtype=torch.float64)
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch):
        return {"y": self.dropout(self.norm(self.layer(batch["x"]))).sum(-1, keepdim=True)}


def noisy_training(topology, chain, shard_state="nothing"):
    loss = ps.MSELoss(prediction_key="y", target_key="zero", mask_key="mask")
    own = ps.Training(Noisy(), loss=loss, optimizer=CHAINS[chain](), hooks=(ps.hooks.ema(0.9),))
    return ps.distributed.data_parallel(own, topology, shard_state=shard_state)


def run(topology, chain, root, shard_state="nothing", stop_after=None):
    """Train for three epochs of four batches from the newest checkpoint on; with `stop_after`, end after so many batches."""
    training = noisy_training(topology, chain, shard_state)
    loader = ps.distributed.shard(ps.Loader(Rows(21), 6, seed=2), topology)
    state = training.init(seed=4)
    if any(name.isdigit() or "step" in name for name in os.listdir(root)):
        state = ps.distributed.restore(functools.partial(ps.load, root), state, topology)

    def stop(event):
        reached = event.stage is ps.Stage.AFTER_BATCH and event.batch_count == stop_after
        return ps.Stop("enough") if reached else None

    with ps.distributed.SharedCheckpoints(lambda: ps.Checkpointer(root), topology, every_n_epochs=1) as checkpoints:
        result = ps.fit(training, loader, state=state, num_epochs=3, listeners=[stop, checkpoints])
    return dict(tree.items(result.state)), result.stop_reason


def stopped_and_resumed(topology, chain, folder, shard_state="nothing"):
    """A run in a piece, and one that ends after 5 batches, in the middle of a window, and goes on."""
    roots = [f"{folder}/{name}" for name in ("whole", "pieces")]
    for root in roots:
        os.makedirs(root, exist_ok=True)
    whole, _ = run(topology, chain, roots[0], shard_state)
    run(topology, chain, roots[1], shard_state, stop_after=5)
    return whole, run(topology, chain, roots[1], shard_state)[0]


def resumed(topology, chain, root, shard_state="nothing"):
    return run(topology, chain, root, shard_state)[0]


def stopped(topology, chain, root, batches):
    return run(topology, chain, root, stop_after=batches)[0]


# --- every rank writes its part -----------------------------------------------------------------------------------


def shares_in_parts(topology, root, num_epochs, stage="parameters", write_part=shards.write_rank):
    """Train up to an epoch from the newest checkpoint on, every rank reading and writing its own part; the state, whole."""
    own = scenarios.staged_training("window").replace(loss=ps.MSELoss(prediction_key="a", target_key="a", mask_key="mask"))
    training = ps.distributed.data_parallel(own, topology, shard_state=stage)
    loader = ps.distributed.shard(ps.Loader(Samples(21), 6, seed=2), topology)
    state = training.init(seed=4)
    if os.path.isdir(f"{root}/latest"):
        state = ps.distributed.restore_in_parts(functools.partial(shards.load_parts, root), state, topology)
    validation = ps.Validation(ps.distributed.shard(ps.Loader(Samples(5), 6, shuffle=False), topology), every_n_epochs=1)
    writer = functools.partial(ps.Checkpointer, root, keep_last=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ps.distributed.SharedCheckpoints(writer, topology, every_n_epochs=1, write_part=write_part) as checkpoints:
            result = ps.fit(training, loader, state=state, num_epochs=num_epochs, validation=validation, listeners=[checkpoints])
    validated = [record["validation/loss/total"] for record in result.history if "validation/loss/total" in record]
    return scenarios.plain(scenarios.whole_state(result.state, topology.ranks)), validated


def once_and_again(topology, folder):
    """Two epochs in a piece, and in two."""
    roots = [f"{folder}/{name}" for name in ("whole", "pieces")]
    whole, validated = shares_in_parts(topology, roots[0], 2)
    shares_in_parts(topology, roots[1], 1)
    return whole, shares_in_parts(topology, roots[1], 2)[0], validated


def continued_elsewhere(topology, root, new_root):
    """The newest state of another world, and the same after it was written by this one; whole."""
    training = ps.distributed.data_parallel(scenarios.staged_training("window"), topology, shard_state="parameters")
    state = ps.distributed.restore_in_parts(functools.partial(shards.load_parts, root), training.init(device="meta"), topology)
    writer = functools.partial(ps.Checkpointer, new_root)
    with ps.distributed.SharedCheckpoints(writer, topology, write_part=shards.write_rank) as checkpoints:
        checkpoints.save(state)
    return scenarios.plain(scenarios.whole_state(state, topology.ranks))


def rank_one_cannot_write(topology, root):
    shares_in_parts(topology, root, 1)

    def write_part(directory, parts, **place):
        if topology.rank == 1:
            raise OSError("no space left on device")
        return shards.write_rank(directory, parts, **place)

    shares_in_parts(topology, root, 2, write_part=write_part)


def rank_one_dies_while_writing(topology, root):
    shares_in_parts(topology, root, 1)

    def write_part(directory, parts, **place):
        if topology.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return shards.write_rank(directory, parts, **place)

    shares_in_parts(topology, root, 2, write_part=write_part)


class Samples(torch.utils.data.Dataset):
    def __init__(self, number):
        self.fields = scenarios.samples(number)

    def __len__(self):
        return len(self.fields["x"])

    def __getitem__(self, index):
        return {name: field[index] for name, field in self.fields.items()}


class FullDisk:
    def __init__(self):
        self.closed = False

    def save(self, state, step=None, **about):
        raise OSError("no space left on device")

    def check_start(self, label):
        pass

    def wait(self):
        pass

    def close(self):
        pass


def full_disk(topology):
    training = noisy_training(topology, "adamw")
    batch = {"x": torch.ones(4, 1, dtype=torch.float64), "zero": torch.zeros(4, 1, dtype=torch.float64), "mask": torch.ones(4).bool()}
    with ps.distributed.SharedCheckpoints(FullDisk, topology, every_n_steps=2) as checkpoints:
        ps.fit(training, [batch] * 4, num_epochs=1, listeners=[checkpoints])


def killed_beside_a_save(topology, root):
    """Rank 1 dies while rank 0 is about to save for the second time."""
    training = noisy_training(topology, "adamw")
    loader = ps.distributed.shard(ps.Loader(Rows(21), 6, seed=2), topology)

    def die(event):
        if topology.rank == 1 and event.stage is ps.Stage.AFTER_BATCH and event.batch_count == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    die.on_every_rank = True
    with ps.distributed.SharedCheckpoints(lambda: ps.Checkpointer(root), topology, every_n_steps=2) as checkpoints:
        ps.fit(training, loader, state=training.init(seed=4), num_epochs=3, listeners=[die, checkpoints])


# --- batch normalisation ------------------------------------------------------------------------------------------


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.first, self.last = nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(4, dtype=torch.float64)

    def forward(self, batch):
        return {"a": self.last(torch.tanh(self.norm(self.first(batch["x"]))))}


def normalised(topology, statistics, splits, engine="auto", backend=None):
    """Two steps on 12 samples shared as `splits` says."""
    loss = ps.MSELoss(prediction_key="a", target_key="a", mask_key="known_a")
    own = ps.Training(Normalised(), loss=loss, optimizer=ps.adamw(0.1), grad_engine=engine)
    shared = ps.distributed.data_parallel(own, topology, batch_norm=statistics)
    step = shared.step if backend is None else ps.compile(shared.step, backend=backend)
    batches = [scenarios.part(scenarios.samples(12, seed), *splits[topology.rank]) for seed in range(2)]
    state, _ = scenarios.run_steps(step, shared.init(), batches)
    return scenarios.plain(state)


# --- checks -------------------------------------------------------------------------------------------------------


def flipped_bit(topology, path):
    """The same state on all ranks, but for the last bit of one leaf on rank 1."""
    state = noisy_training(topology, "window").init()
    ps.distributed.check_same_state(state, topology)
    if topology.rank == 1:
        state = tree.map_with_path(lambda name, leaf: torch.nextafter(leaf, leaf + 1) if name == path else leaf, state)
    ps.distributed.check_same_state(state, topology)


def another_model(topology):
    chain = "adamw" if topology.rank == 0 else "window"
    training = noisy_training(topology, chain)
    ps.fit(training, [None], num_epochs=1)


def another_seed(topology):
    ps.fit(noisy_training(topology, "adamw"), [None], num_epochs=1, seed=topology.rank)


def drifted(topology):
    """Ranks that each train alone on data of their own, compared after every second batch."""
    training = scenarios.wide_training("adamw")
    batches = [scenarios.samples(12, seed + 10 * topology.rank) for seed in range(6)]
    ps.fit(training, batches, num_epochs=1, listeners=[ps.distributed.SameState(topology, every=2)])


def other_settings(topology):
    ps.distributed.check_same_text(f"batch_size: 4\nseed: {topology.rank}", topology, where="spec")


def reduced(topology):
    own = {"a": float(topology.rank), "b": 1.0}
    return {how: ps.distributed.reduce_scalars(own, topology, how=how) for how in ("mean", "sum", "min", "max")}


def sums_out_of_order(topology):
    """Rank 1 leaves out a sum."""
    ranks = topology.ranks
    with ps.distributed.collective_order_checked(topology):
        ranks.sum(torch.ones(3))
        if topology.rank == 0:
            ranks.sum(torch.ones(2))
        ranks.sum(torch.ones(5, dtype=torch.float64))
